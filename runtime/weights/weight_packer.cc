#include "runtime/weights/weight_packer.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/threads/mutex.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/placement/buffer_sizes.h"
#include "runtime/quant/convert_floats.h"

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

// The bytes that the window has of [offset, offset + size).
size_t BytesWithin(const ImageWindow& to, size_t offset, size_t size) {
  if (!to.Touches(offset, size)) return 0;
  return std::min(to.end, offset + size) - std::max(to.begin, offset);
}

// Copies what the window has of `bytes`, which belong at `offset`.
void CopyWithin(const ImageWindow& to, size_t offset,
                std::span<const std::byte> bytes) {
  const size_t size = BytesWithin(to, offset, bytes.size());
  if (size == 0) return;
  const size_t from = std::max(to.begin, offset);
  std::memcpy(to.At(from), bytes.data() + (from - offset), size);
}

void CopyWithin(const ImageWindow& to, size_t offset,
                std::span<const float> values) {
  CopyWithin(to, offset, std::as_bytes(values));
}

// Calls progress with what is packed of a window, and at the end with what
// nothing was packed into.
class WindowProgress {
 public:
  WindowProgress(LoadProgress progress, const ImageWindow& to)
      : progress_(progress), left_(to.bytes()) {}
  absl::Status operator()(uint64_t bytes) const {
    left_ -= bytes;
    return progress_(bytes);
  }
  absl::Status Rest() { return progress_(left_); }

 private:
  LoadProgress progress_;
  mutable uint64_t left_;
};

}  // namespace

std::vector<WeightPacker::PanelRows> WeightPacker::IntoPanels(
    const std::vector<RowRun>& runs) {
  std::vector<PanelRows> panels;
  int64_t room = 0;
  for (const RowRun& run : runs) {
    for (int64_t row = run.begin; row < run.end;) {
      if (room == 0) {
        panels.emplace_back();
        room = kPanelColumns;
      }
      const int64_t count = std::min(room, run.end - row);
      panels.back().push_back({run.ref, row, row + count});
      row += count;
      room -= count;
    }
  }
  return panels;
}

std::vector<WeightPacker::PanelRows> WeightPacker::Concatenate(
    const std::vector<const TensorRef*>& tensors) {
  std::vector<RowRun> runs;
  for (const TensorRef* ref : tensors) runs.push_back({ref, 0, ref->shape[0]});
  return IntoPanels(runs);
}

std::vector<WeightPacker::PanelRows> WeightPacker::Interleave(
    const TensorRef* a, const TensorRef* b) {
  std::vector<PanelRows> panels;
  constexpr int64_t kHalf = kPanelColumns / 2;
  for (int64_t row = 0; row < a->shape[0]; row += kHalf) {
    const int64_t end = std::min(row + kHalf, a->shape[0]);
    panels.push_back({{a, row, end}, {b, row, end}});
  }
  return panels;
}

absl::Status WeightPacker::PackMatrix(const MatrixLayout& layout,
                                      const std::vector<PanelRows>& panels,
                                      const TensorSource& source,
                                      LoadProgress progress,
                                      const ImageWindow& to) {
  const auto within = [&](int panel) {
    return BytesWithin(to, layout.panel_offset(panel),
                       layout.panel_bytes(panel));
  };
  int begin = 0;
  int end = static_cast<int>(panels.size());
  while (begin < end && within(begin) == 0) ++begin;
  while (begin < end && within(end - 1) == 0) --end;
  if (begin == end) return absl::OkStatus();

  const int64_t k = layout.k;
  const size_t staging_floats = kPanelColumns * k;
  // A panel that lies across a border of the window.
  const size_t panel_bytes =
      std::max(layout.whole_panel_bytes, layout.last_panel_bytes);
  const int threads = pool_->num_threads();
  SLUICE_ASSIGN_OR_RETURN(
      HostBuffer staging,
      HostBuffer::Create("load staging", MatrixStagingBytes(layout, threads),
                         budget_));
  std::byte* const cut_panels =
      staging.as<std::byte>() + staging_floats * sizeof(float) * threads;
  const int group = 4 * threads;
  FirstError error;
  for (int first = begin; first < end; first += group) {
    const int count = std::min(group, end - first);
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
      const size_t offset = layout.panel_offset(panel);
      const size_t bytes = layout.panel_bytes(panel);
      const bool whole = to.Holds(offset, bytes);
      std::byte* const cut = cut_panels + thread * panel_bytes;
      if (!whole) std::memset(cut, 0, bytes);
      absl::Status status = packer_->Pack(layout, panel, rows, thread,
                                          whole ? to.At(offset) : cut);
      if (!status.ok()) {
        error.Set(Annotate(status, panels[panel][0].ref->name));
      } else if (!whole) {
        CopyWithin(to, offset, std::span<const std::byte>(cut, bytes));
      }
    });
    SLUICE_RETURN_IF_ERROR(error.Get());
    uint64_t done = 0;
    for (int panel = first; panel < first + count; ++panel) {
      done += within(panel);
    }
    SLUICE_RETURN_IF_ERROR(progress(done));
  }
  return absl::OkStatus();
}

absl::Status WeightPacker::PackTable(const TensorRef& ref, int64_t rows,
                                     size_t offset, const TensorSource& source,
                                     LoadProgress progress,
                                     const ImageWindow& to) {
  const int64_t cols = ref.shape[1];
  const DType dtype = packer_->rules().table_dtype;
  const size_t row_bytes = ElementBytes(dtype) * cols;
  const size_t table_bytes = row_bytes * rows;
  if (!to.Touches(offset, table_bytes)) return absl::OkStatus();
  // The rows that the window has some of.
  const auto first_row =
      static_cast<int64_t>((std::max(to.begin, offset) - offset) / row_bytes);
  const auto end_row = static_cast<int64_t>(
      (std::min(to.end, offset + table_bytes) - offset + row_bytes - 1) /
      row_bytes);
  const int threads = pool_->num_threads();
  const bool direct = dtype == DType::kFloat32;
  const size_t floats = kTableChunkRows * cols;
  const size_t chunk_bytes = kTableChunkRows * row_bytes;
  SLUICE_ASSIGN_OR_RETURN(
      HostBuffer staging,
      HostBuffer::Create("load staging",
                         TableStagingBytes(cols, dtype, threads), budget_));
  std::byte* const cut_chunks =
      staging.as<std::byte>() + threads * floats * sizeof(float);
  const int64_t chunks =
      (end_row - first_row + kTableChunkRows - 1) / kTableChunkRows;
  const int64_t group = 16 * threads;
  FirstError error;
  for (int64_t first = 0; first < chunks; first += group) {
    const int64_t count = std::min(group, chunks - first);
    const auto row_of = [&](int64_t chunk) {
      return std::min(first_row + chunk * kTableChunkRows, end_row);
    };
    pool_->ParallelFor(static_cast<int>(count), [&](int task, int thread) {
      const int64_t begin = row_of(first + task);
      const int64_t end = row_of(first + task + 1);
      const size_t at = offset + begin * row_bytes;
      const size_t bytes = (end - begin) * row_bytes;
      const bool whole = to.Holds(at, bytes);
      std::byte* const out =
          whole ? to.At(at) : cut_chunks + thread * chunk_bytes;
      float* const values = direct ? reinterpret_cast<float*>(out)
                                   : staging.as<float>() + thread * floats;
      absl::Status status = source.ReadRows(ref, begin, end, values);
      if (!status.ok()) return error.Set(std::move(status));
      if (!direct) ConvertFloats(values, (end - begin) * cols, dtype, out);
      if (!whole) CopyWithin(to, at, std::span<const std::byte>(out, bytes));
    });
    SLUICE_RETURN_IF_ERROR(error.Get());
    const size_t at = offset + row_of(first) * row_bytes;
    SLUICE_RETURN_IF_ERROR(progress(
        BytesWithin(to, at, offset + row_of(first + count) * row_bytes - at)));
  }
  return absl::OkStatus();
}

absl::Status WeightPacker::PackVectors(
    const VectorLayout& layout, const std::vector<const TensorRef*>& tensors,
    const TensorSource& source, const ImageWindow& to) {
  if (layout.length == 0) return absl::OkStatus();
  std::vector<float> values(layout.length);
  float* next = values.data();
  for (const TensorRef* ref : tensors) {
    SLUICE_RETURN_IF_ERROR(source.ReadRows(*ref, 0, 1, next));
    next += Length(*ref);
  }
  if (layout.dtype == DType::kFloat32) {
    CopyWithin(to, layout.offset, std::span<const float>(values));
  } else {
    std::vector<std::byte> typed(layout.bytes());
    ConvertFloats(values.data(), layout.length, layout.dtype, typed.data());
    CopyWithin(to, layout.offset, std::span<const std::byte>(typed));
  }
  return absl::OkStatus();
}

absl::Status WeightPacker::PackLayer(const LayerLayout& layout, int layer,
                                     const TensorSource& source,
                                     LoadProgress progress,
                                     const ImageWindow& to) {
  const std::vector<TensorRef> t = LayerTensors(spec_, layer);
  WindowProgress count(progress, to);
  const auto vectors = [&](const VectorLayout& vector,
                           const std::vector<Role>& roles) {
    std::vector<const TensorRef*> from;
    for (Role role : roles) from.push_back(Find(t, role));
    return PackVectors(vector, from, source, to);
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
  const bool interleave =
      spec_.gated_mlp && packer_->rules().interleaves_gate();
  std::vector<PanelRows> up_panels;
  if (interleave) {
    up_panels = Interleave(gate, up);
  } else if (spec_.gated_mlp) {
    up_panels = Concatenate({gate, up});
  } else {
    up_panels = Concatenate({up});
  }
  if (layout.up_bias.length > 0 && interleave) {
    // In the order of the panels' columns.
    const int64_t inner = spec_.intermediate_size;
    std::vector<float> plain(2 * inner);
    SLUICE_RETURN_IF_ERROR(
        source.ReadRows(*Find(t, Role::kGateBias), 0, 1, plain.data()));
    SLUICE_RETURN_IF_ERROR(
        source.ReadRows(*Find(t, Role::kUpBias), 0, 1, plain.data() + inner));
    std::vector<float> mixed(plain.size());
    float* next = mixed.data();
    for (const PanelRows& panel : up_panels) {
      for (const RowRun& run : panel) {
        const float* from = plain.data() + (run.ref == gate ? 0 : inner);
        next = std::copy(from + run.begin, from + run.end, next);
      }
    }
    CopyWithin(to, layout.up_bias.offset, std::span<const float>(mixed));
  } else if (spec_.gated_mlp) {
    SLUICE_RETURN_IF_ERROR(
        vectors(layout.up_bias, {Role::kGateBias, Role::kUpBias}));
  } else {
    SLUICE_RETURN_IF_ERROR(vectors(layout.up_bias, {Role::kUpBias}));
    SLUICE_RETURN_IF_ERROR(vectors(layout.up_bias_typed, {Role::kUpBias}));
  }
  SLUICE_RETURN_IF_ERROR(
      PackMatrix(layout.qkv,
                 Concatenate({Find(t, Role::kQWeight), Find(t, Role::kKWeight),
                              Find(t, Role::kVWeight)}),
                 source, count, to));
  SLUICE_RETURN_IF_ERROR(PackMatrix(
      layout.out, Concatenate({Find(t, Role::kOutWeight)}), source, count, to));
  SLUICE_RETURN_IF_ERROR(PackMatrix(layout.up, up_panels, source, count, to));
  SLUICE_RETURN_IF_ERROR(PackMatrix(layout.down,
                                    Concatenate({Find(t, Role::kDownWeight)}),
                                    source, count, to));
  return count.Rest();
}

absl::Status WeightPacker::PackEmbedding(const EmbeddingLayout& layout,
                                         const TensorSource& source,
                                         LoadProgress progress,
                                         const ImageWindow& to) {
  const std::vector<TensorRef> t = EmbeddingTensors(spec_);
  WindowProgress count(progress, to);
  SLUICE_RETURN_IF_ERROR(PackTable(*Find(t, Role::kEmbedding), spec_.vocab_size,
                                   layout.table, source, count, to));
  if (const TensorRef* p = Find(t, Role::kPositionEmbedding)) {
    SLUICE_RETURN_IF_ERROR(PackTable(*p, layout.position_rows, layout.positions,
                                     source, count, to));
  }
  if (const TensorRef* p = Find(t, Role::kProjectIn)) {
    SLUICE_RETURN_IF_ERROR(
        PackMatrix(layout.project_in, Concatenate({p}), source, count, to));
  }
  return count.Rest();
}

absl::Status WeightPacker::PackHead(const HeadSectionLayout& layout,
                                    const TensorSource& source,
                                    LoadProgress progress,
                                    const ImageWindow& to) {
  const std::vector<TensorRef> t = HeadTensors(spec_);
  WindowProgress count(progress, to);
  SLUICE_RETURN_IF_ERROR(PackVectors(
      layout.norm.weight, {Find(t, Role::kFinalNormWeight)}, source, to));
  SLUICE_RETURN_IF_ERROR(PackVectors(
      layout.norm.bias, {Find(t, Role::kFinalNormBias)}, source, to));
  const TensorRef* p = Find(t, Role::kProjectOut);
  if (p != nullptr && layout.project_out.n > 0) {
    SLUICE_RETURN_IF_ERROR(
        PackMatrix(layout.project_out, Concatenate({p}), source, count, to));
  }
  SLUICE_RETURN_IF_ERROR(
      PackMatrix(layout.head,
                 IntoPanels({{Find(t, Role::kHead), layout.first_column,
                              layout.first_column + layout.head.n}}),
                 source, count, to));
  return count.Rest();
}

}  // namespace sluice
