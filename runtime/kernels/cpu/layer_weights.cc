#include "runtime/kernels/cpu/layer_weights.h"

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

std::vector<WeightLoader::PanelRows> WeightLoader::Concatenate(
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

std::vector<WeightLoader::PanelRows> WeightLoader::Interleave(
    const TensorRef* a, const TensorRef* b) {
  std::vector<PanelRows> panels;
  constexpr int64_t kHalf = GemmEngine::kPanelWidth / 2;
  for (int64_t row = 0; row < a->shape[0]; row += kHalf) {
    const int64_t end = std::min(row + kHalf, a->shape[0]);
    panels.push_back({{a, row, end}, {b, row, end}});
  }
  return panels;
}

absl::Status WeightLoader::LoadMatrix(const std::string& name,
                                      const std::vector<PanelRows>& panels,
                                      const TensorSource& source,
                                      LoadProgress progress,
                                      PackedMatrix* out) {
  const int64_t k = panels[0][0].ref->shape[1];
  int64_t n = 0;
  for (const PanelRows& panel : panels) {
    for (const RowRun& run : panel) n += run.end - run.begin;
  }
  SLUICE_ASSIGN_OR_RETURN(*out, gemm_->Allocate(name, n, k, budget_));
  SLUICE_ASSIGN_OR_RETURN(const size_t bytes, gemm_->PackedBytes(n, k));
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
      float* rows = staging.as<float>() + thread * staging_floats;
      int64_t row = 0;
      for (const RowRun& run : panels[first + task]) {
        absl::Status status =
            source.ReadRows(*run.ref, run.begin, run.end, rows + row * k);
        if (!status.ok()) return error.Set(std::move(status));
        row += run.end - run.begin;
      }
      absl::Status status = gemm_->Pack(*out, first + task, rows, thread);
      if (!status.ok()) error.Set(std::move(status));
    });
    SLUICE_RETURN_IF_ERROR(error.Get());
    // Rounded so that the parts add up to the whole.
    const uint64_t before = bytes * first / num_panels;
    SLUICE_RETURN_IF_ERROR(
        progress(bytes * (first + count) / num_panels - before));
  }
  return absl::OkStatus();
}

absl::Status WeightLoader::LoadTable(const std::string& name,
                                     const TensorRef& ref, int64_t rows,
                                     const TensorSource& source,
                                     LoadProgress progress, HostBuffer* out) {
  const int64_t cols = ref.shape[1];
  const size_t element = gemm_->element_bytes();
  SLUICE_ASSIGN_OR_RETURN(
      *out, HostBuffer::Create(name, rows * cols * element, budget_));
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
      float* target = direct ? out->as<float>() + begin * cols
                             : staging.as<float>() + thread * kTableRows * cols;
      absl::Status status = source.ReadRows(ref, begin, end, target);
      if (!status.ok()) return error.Set(std::move(status));
      if (!direct) {
        for (int64_t row = begin; row < end; ++row) {
          FloatToBf16(target + (row - begin) * cols, static_cast<int32_t>(cols),
                      out->as<uint16_t>() + row * cols);
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

absl::Status WeightLoader::LoadVectors(
    const std::string& name, const std::vector<const TensorRef*>& tensors,
    const TensorSource& source, LoadProgress progress, HostBuffer* out) {
  int64_t length = 0;
  for (const TensorRef* ref : tensors) {
    if (ref == nullptr) return absl::OkStatus();
    length += Length(*ref);
  }
  SLUICE_ASSIGN_OR_RETURN(
      *out, HostBuffer::Create(name, length * sizeof(float), budget_));
  float* next = out->as<float>();
  for (const TensorRef* ref : tensors) {
    SLUICE_RETURN_IF_ERROR(source.ReadRows(*ref, 0, 1, next));
    next += Length(*ref);
  }
  return progress(length * sizeof(float));
}

absl::Status WeightLoader::LoadNorm(const std::string& name,
                                    const TensorRef* weight,
                                    const TensorRef* bias,
                                    const TensorSource& source,
                                    LoadProgress progress, NormWeights* out) {
  SLUICE_RETURN_IF_ERROR(
      LoadVectors(name, {weight}, source, progress, &out->weight));
  return LoadVectors(name, {bias}, source, progress, &out->bias);
}

absl::StatusOr<uint64_t> WeightLoader::LayerBytes() {
  const std::vector<TensorRef> tensors = LayerTensors(spec_, 0);
  const int32_t q = spec_.num_heads * spec_.head_dim;
  const int32_t kv = spec_.num_kv_heads * spec_.head_dim;
  const int32_t up = spec_.intermediate_size * (spec_.gated_mlp ? 2 : 1);
  const std::pair<int32_t, int32_t> shapes[] = {
      {q + 2 * kv, spec_.hidden_size},
      {spec_.hidden_size, q},
      {up, spec_.hidden_size},
      {spec_.hidden_size, spec_.intermediate_size}};
  uint64_t bytes = 0;
  for (const auto& [n, k] : shapes) {
    SLUICE_ASSIGN_OR_RETURN(const size_t matrix, gemm_->PackedBytes(n, k));
    bytes += matrix;
  }
  for (const TensorRef& t : tensors) {
    if (t.shape.size() == 1) bytes += Length(t) * sizeof(float);
  }
  return bytes;
}

absl::StatusOr<uint64_t> WeightLoader::EmbeddingBytes(int64_t positions) {
  uint64_t bytes = 0;
  for (const TensorRef& t : EmbeddingTensors(spec_)) {
    if (t.role == Role::kProjectIn) {
      SLUICE_ASSIGN_OR_RETURN(const size_t matrix,
                              gemm_->PackedBytes(t.shape[0], t.shape[1]));
      bytes += matrix;
    } else {
      const int64_t rows =
          t.role == Role::kPositionEmbedding ? positions : t.shape[0];
      bytes += rows * t.shape[1] * gemm_->element_bytes();
    }
  }
  return bytes;
}

absl::StatusOr<uint64_t> WeightLoader::HeadBytes() {
  uint64_t bytes = 0;
  for (const TensorRef& t : HeadTensors(spec_)) {
    if (t.shape.size() == 1) {
      bytes += Length(t) * sizeof(float);
      continue;
    }
    SLUICE_ASSIGN_OR_RETURN(const size_t matrix,
                            gemm_->PackedBytes(t.shape[0], t.shape[1]));
    bytes += matrix;
  }
  return bytes;
}

absl::StatusOr<LayerWeights> WeightLoader::LoadLayer(int layer,
                                                     const TensorSource& source,
                                                     LoadProgress progress) {
  const std::string name = absl::StrCat("weights layer ", layer);
  const std::vector<TensorRef> t = LayerTensors(spec_, layer);
  LayerWeights w;
  SLUICE_RETURN_IF_ERROR(LoadNorm(name, Find(t, Role::kNorm1Weight),
                                  Find(t, Role::kNorm1Bias), source, progress,
                                  &w.norm1));
  const std::vector<const TensorRef*> qkv = {Find(t, Role::kQWeight),
                                             Find(t, Role::kKWeight),
                                             Find(t, Role::kVWeight)};
  SLUICE_RETURN_IF_ERROR(
      LoadMatrix(name, Concatenate(qkv), source, progress, &w.qkv));
  SLUICE_RETURN_IF_ERROR(LoadVectors(
      name,
      {Find(t, Role::kQBias), Find(t, Role::kKBias), Find(t, Role::kVBias)},
      source, progress, &w.qkv_bias));
  SLUICE_RETURN_IF_ERROR(LoadMatrix(name,
                                    Concatenate({Find(t, Role::kOutWeight)}),
                                    source, progress, &w.out));
  SLUICE_RETURN_IF_ERROR(LoadVectors(name, {Find(t, Role::kOutBias)}, source,
                                     progress, &w.out_bias));
  SLUICE_RETURN_IF_ERROR(LoadNorm(name, Find(t, Role::kNorm2Weight),
                                  Find(t, Role::kNorm2Bias), source, progress,
                                  &w.norm2));
  const TensorRef* up = Find(t, Role::kUpWeight);
  if (spec_.gated_mlp) {
    const TensorRef* gate = Find(t, Role::kGateWeight);
    const std::vector<PanelRows> panels = Interleave(gate, up);
    SLUICE_RETURN_IF_ERROR(LoadMatrix(name, panels, source, progress, &w.up));
    HostBuffer plain;
    SLUICE_RETURN_IF_ERROR(
        LoadVectors(name, {Find(t, Role::kGateBias), Find(t, Role::kUpBias)},
                    source, progress, &plain));
    if (plain.data() != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(w.up_bias,
                              HostBuffer::Create(name, plain.bytes(), budget_));
      float* next = w.up_bias.as<float>();
      for (const PanelRows& panel : panels) {
        for (const RowRun& run : panel) {
          const float* from = plain.as<float>() +
                              (run.ref == gate ? 0 : spec_.intermediate_size);
          next = std::copy(from + run.begin, from + run.end, next);
        }
      }
    }
  } else {
    SLUICE_RETURN_IF_ERROR(
        LoadMatrix(name, Concatenate({up}), source, progress, &w.up));
    SLUICE_RETURN_IF_ERROR(LoadVectors(name, {Find(t, Role::kUpBias)}, source,
                                       progress, &w.up_bias));
  }
  SLUICE_RETURN_IF_ERROR(LoadMatrix(name,
                                    Concatenate({Find(t, Role::kDownWeight)}),
                                    source, progress, &w.down));
  SLUICE_RETURN_IF_ERROR(LoadVectors(name, {Find(t, Role::kDownBias)}, source,
                                     progress, &w.down_bias));
  return w;
}

absl::StatusOr<EmbeddingWeights> WeightLoader::LoadEmbedding(
    int64_t positions, const TensorSource& source, LoadProgress progress) {
  const std::vector<TensorRef> t = EmbeddingTensors(spec_);
  EmbeddingWeights w;
  SLUICE_RETURN_IF_ERROR(LoadTable("embedding", *Find(t, Role::kEmbedding),
                                   spec_.vocab_size, source, progress,
                                   &w.table));
  if (const TensorRef* p = Find(t, Role::kPositionEmbedding)) {
    SLUICE_RETURN_IF_ERROR(
        LoadTable("embedding", *p, positions, source, progress, &w.positions));
  }
  if (const TensorRef* p = Find(t, Role::kProjectIn)) {
    SLUICE_RETURN_IF_ERROR(LoadMatrix("embedding", Concatenate({p}), source,
                                      progress, &w.project_in));
  }
  return w;
}

absl::StatusOr<HeadWeights> WeightLoader::LoadHead(const TensorSource& source,
                                                   LoadProgress progress) {
  const std::vector<TensorRef> t = HeadTensors(spec_);
  HeadWeights w;
  SLUICE_RETURN_IF_ERROR(LoadNorm("head", Find(t, Role::kFinalNormWeight),
                                  Find(t, Role::kFinalNormBias), source,
                                  progress, &w.norm));
  if (const TensorRef* p = Find(t, Role::kProjectOut)) {
    SLUICE_RETURN_IF_ERROR(
        LoadMatrix("head", Concatenate({p}), source, progress, &w.project_out));
  }
  SLUICE_RETURN_IF_ERROR(LoadMatrix("head", Concatenate({Find(t, Role::kHead)}),
                                    source, progress, &w.head));
  return w;
}

}  // namespace sluice
