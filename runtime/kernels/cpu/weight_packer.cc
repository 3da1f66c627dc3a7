#include "runtime/kernels/cpu/weight_packer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "runtime/kernels/cpu/vector_ops.h"

namespace sluice {
namespace {

using Role = TensorRole;

const TensorRef* Find(const std::vector<TensorRef>& tensors, Role role) {
  for (const TensorRef& t : tensors) {
    if (t.role == role) return &t;
  }
  return nullptr;
}

int64_t Length(const TensorRef& ref) {
  int64_t n = 1;
  for (int64_t d : ref.shape) n *= d;
  return n;
}

// The first error of several threads.
class FirstError {
 public:
  void Set(absl::Status status) {
    MutexLock lock(&mu_);
    if (status_.ok()) status_ = std::move(status);
  }
  absl::Status Get() {
    MutexLock lock(&mu_);
    return status_;
  }

 private:
  Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

// Rows of a table that are read in one piece.
constexpr int64_t kTableRows = 64;

}  // namespace

std::vector<WeightPacker::PanelRows> WeightPacker::Concatenate(
    const std::vector<const TensorRef*>& tensors) {
  std::vector<PanelRows> panels;
  int64_t room = 0;
  for (const TensorRef* ref : tensors) {
    for (int64_t row = 0; row < ref->shape[0];) {
      if (room == 0) {
        panels.emplace_back();
        room = GemmEngine::kPanelWidth;
      }
      const int64_t count = std::min(room, ref->shape[0] - row);
      panels.back().push_back({ref, row, row + count});
      row += count;
      room -= count;
    }
  }
  return panels;
}

std::vector<WeightPacker::PanelRows> WeightPacker::Interleave(
    const TensorRef* a, const TensorRef* b) {
  std::vector<PanelRows> panels;
  constexpr int64_t kHalf = GemmEngine::kPanelWidth / 2;
  for (int64_t row = 0; row < a->shape[0]; row += kHalf) {
    const int64_t end = std::min(row + kHalf, a->shape[0]);
    panels.push_back({{a, row, end}, {b, row, end}});
  }
  return panels;
}

absl::Status WeightPacker::PackMatrix(const MatrixLayout& layout,
                                      const std::vector<PanelRows>& panels,
                                      const TensorSource& source,
                                      LoadProgress progress, std::byte* image) {
  const int64_t k = layout.k;
  const size_t staging_floats = GemmEngine::kPanelWidth * k;
  const int threads = pool_->num_threads();
  SLUICE_ASSIGN_OR_RETURN(
      HostBuffer staging,
      HostBuffer::Create("load staging",
                         staging_floats * threads * sizeof(float), budget_));
  const int num_panels = static_cast<int>(panels.size());
  const int group = 4 * threads;
  FirstError error;
  for (int first = 0; first < num_panels; first += group) {
    const int count = std::min(group, num_panels - first);
    pool_->ParallelFor(count, [&](int task, int thread) {
      const int panel = first + task;
      float* rows = staging.as<float>() + thread * staging_floats;
      int64_t row = 0;
      for (const RowRun& run : panels[panel]) {
        absl::Status status =
            source.ReadRows(*run.ref, run.begin, run.end, rows + row * k);
        if (!status.ok()) return error.Set(std::move(status));
        row += run.end - run.begin;
      }
      absl::Status status = gemm_->Pack(layout, panel, rows, thread,
                                        image + layout.panel_offset(panel));
      if (!status.ok()) {
        error.Set(Annotate(std::move(status), panels[panel][0].ref->name));
      }
    });
    SLUICE_RETURN_IF_ERROR(error.Get());
    // Rounded so that the parts add up to the whole.
    const uint64_t before = layout.bytes * first / num_panels;
    SLUICE_RETURN_IF_ERROR(
        progress(layout.bytes * (first + count) / num_panels - before));
  }
  return absl::OkStatus();
}

absl::Status WeightPacker::PackTable(const TensorRef& ref, int64_t rows,
                                     const TensorSource& source,
                                     LoadProgress progress, std::byte* out) {
  const int64_t cols = ref.shape[1];
  const size_t element = gemm_->element_bytes();
  const int threads = pool_->num_threads();
  SLUICE_ASSIGN_OR_RETURN(
      HostBuffer staging,
      HostBuffer::Create("load staging",
                         threads * kTableRows * cols * sizeof(float), budget_));
  const int64_t chunks = (rows + kTableRows - 1) / kTableRows;
  const int64_t group = 16 * threads;
  FirstError error;
  for (int64_t first = 0; first < chunks; first += group) {
    const int64_t count = std::min(group, chunks - first);
    pool_->ParallelFor(static_cast<int>(count), [&](int task, int thread) {
      const int64_t begin = (first + task) * kTableRows;
      const int64_t end = std::min(begin + kTableRows, rows);
      const bool direct = gemm_->dtype() == DType::kFloat32;
      float* target = direct ? reinterpret_cast<float*>(out) + begin * cols
                             : staging.as<float>() + thread * kTableRows * cols;
      absl::Status status = source.ReadRows(ref, begin, end, target);
      if (!status.ok()) return error.Set(std::move(status));
      if (!direct) {
        for (int64_t row = begin; row < end; ++row) {
          FloatToBf16(target + (row - begin) * cols, static_cast<int32_t>(cols),
                      reinterpret_cast<uint16_t*>(out) + row * cols);
        }
      }
    });
    SLUICE_RETURN_IF_ERROR(error.Get());
    const int64_t done =
        std::min(rows, (first + count) * kTableRows) - first * kTableRows;
    SLUICE_RETURN_IF_ERROR(progress(done * cols * element));
  }
  return absl::OkStatus();
}

absl::Status WeightPacker::PackVectors(
    const VectorLayout& layout, const std::vector<const TensorRef*>& tensors,
    const TensorSource& source, std::byte* image) {
  if (layout.length == 0) return absl::OkStatus();
  float* next = reinterpret_cast<float*>(image + layout.offset);
  for (const TensorRef* ref : tensors) {
    SLUICE_RETURN_IF_ERROR(source.ReadRows(*ref, 0, 1, next));
    next += Length(*ref);
  }
  return absl::OkStatus();
}

absl::Status WeightPacker::PackLayer(const LayerLayout& layout, int layer,
                                     const TensorSource& source,
                                     LoadProgress progress, std::byte* image) {
  const std::vector<TensorRef> t = LayerTensors(spec_, layer);
  const auto vectors = [&](const VectorLayout& to,
                           const std::vector<Role>& roles) {
    std::vector<const TensorRef*> from;
    for (Role role : roles) from.push_back(Find(t, role));
    return PackVectors(to, from, source, image);
  };
  SLUICE_RETURN_IF_ERROR(vectors(layout.norm1.weight, {Role::kNorm1Weight}));
  SLUICE_RETURN_IF_ERROR(vectors(layout.norm1.bias, {Role::kNorm1Bias}));
  SLUICE_RETURN_IF_ERROR(vectors(layout.norm2.weight, {Role::kNorm2Weight}));
  SLUICE_RETURN_IF_ERROR(vectors(layout.norm2.bias, {Role::kNorm2Bias}));
  SLUICE_RETURN_IF_ERROR(
      vectors(layout.qkv_bias, {Role::kQBias, Role::kKBias, Role::kVBias}));
  SLUICE_RETURN_IF_ERROR(vectors(layout.out_bias, {Role::kOutBias}));
  SLUICE_RETURN_IF_ERROR(vectors(layout.down_bias, {Role::kDownBias}));
  const TensorRef* up = Find(t, Role::kUpWeight);
  const TensorRef* gate = Find(t, Role::kGateWeight);
  const std::vector<PanelRows> up_panels =
      spec_.gated_mlp ? Interleave(gate, up) : Concatenate({up});
  if (layout.up_bias.length > 0 && spec_.gated_mlp) {
    // In the order of the panels' columns.
    const int64_t inner = spec_.intermediate_size;
    std::vector<float> plain(2 * inner);
    SLUICE_RETURN_IF_ERROR(
        source.ReadRows(*Find(t, Role::kGateBias), 0, 1, plain.data()));
    SLUICE_RETURN_IF_ERROR(
        source.ReadRows(*Find(t, Role::kUpBias), 0, 1, plain.data() + inner));
    float* next = reinterpret_cast<float*>(image + layout.up_bias.offset);
    for (const PanelRows& panel : up_panels) {
      for (const RowRun& run : panel) {
        const float* from = plain.data() + (run.ref == gate ? 0 : inner);
        next = std::copy(from + run.begin, from + run.end, next);
      }
    }
  } else {
    SLUICE_RETURN_IF_ERROR(vectors(layout.up_bias, {Role::kUpBias}));
  }
  SLUICE_RETURN_IF_ERROR(
      PackMatrix(layout.qkv,
                 Concatenate({Find(t, Role::kQWeight), Find(t, Role::kKWeight),
                              Find(t, Role::kVWeight)}),
                 source, progress, image));
  SLUICE_RETURN_IF_ERROR(PackMatrix(layout.out,
                                    Concatenate({Find(t, Role::kOutWeight)}),
                                    source, progress, image));
  SLUICE_RETURN_IF_ERROR(
      PackMatrix(layout.up, up_panels, source, progress, image));
  SLUICE_RETURN_IF_ERROR(PackMatrix(layout.down,
                                    Concatenate({Find(t, Role::kDownWeight)}),
                                    source, progress, image));
  // What is not matrices.
  return progress(layout.bytes - layout.qkv.bytes - layout.out.bytes -
                  layout.up.bytes - layout.down.bytes);
}

absl::Status WeightPacker::PackEmbedding(const EmbeddingLayout& layout,
                                         const TensorSource& source,
                                         LoadProgress progress,
                                         std::byte* image) {
  const std::vector<TensorRef> t = EmbeddingTensors(spec_);
  uint64_t done = 0;
  const auto count = [&](uint64_t bytes) {
    done += bytes;
    return progress(bytes);
  };
  SLUICE_RETURN_IF_ERROR(PackTable(*Find(t, Role::kEmbedding), spec_.vocab_size,
                                   source, count, image + layout.table));
  if (const TensorRef* p = Find(t, Role::kPositionEmbedding)) {
    SLUICE_RETURN_IF_ERROR(PackTable(*p, layout.position_rows, source, count,
                                     image + layout.positions));
  }
  if (const TensorRef* p = Find(t, Role::kProjectIn)) {
    SLUICE_RETURN_IF_ERROR(
        PackMatrix(layout.project_in, Concatenate({p}), source, count, image));
  }
  return progress(layout.bytes - done);
}

absl::Status WeightPacker::PackHead(const HeadLayout& layout,
                                    const TensorSource& source,
                                    LoadProgress progress, std::byte* image) {
  const std::vector<TensorRef> t = HeadTensors(spec_);
  SLUICE_RETURN_IF_ERROR(PackVectors(
      layout.norm.weight, {Find(t, Role::kFinalNormWeight)}, source, image));
  SLUICE_RETURN_IF_ERROR(PackVectors(
      layout.norm.bias, {Find(t, Role::kFinalNormBias)}, source, image));
  uint64_t matrices = layout.head.bytes;
  if (const TensorRef* p = Find(t, Role::kProjectOut)) {
    matrices += layout.project_out.bytes;
    SLUICE_RETURN_IF_ERROR(PackMatrix(layout.project_out, Concatenate({p}),
                                      source, progress, image));
  }
  SLUICE_RETURN_IF_ERROR(PackMatrix(layout.head,
                                    Concatenate({Find(t, Role::kHead)}), source,
                                    progress, image));
  return progress(layout.bytes - matrices);
}

}  // namespace sluice
