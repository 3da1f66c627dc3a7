#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "common/threads/mutex.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/model/checkpoint/tensor_names.h"
#include "runtime/model/checkpoint/tensor_source.h"
#include "runtime/placement/buffer_sizes.h"
#include "runtime/quant/convert_floats.h"
#include "runtime/quant/scaled_strip.h"
#include "runtime/quant/strip_codec.h"
#include "runtime/weights/packed_weights.h"

namespace sluice {
namespace {

using Role = TensorRole;

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
size_t BytesWithin(const PackedWindow& to, size_t offset, size_t size) {
  if (!to.Touches(offset, size)) return 0;
  return std::min(to.end, offset + size) - std::max(to.begin, offset);
}

// Copies what the window has of `bytes`, which belong at `offset`.
void CopyWithin(const PackedWindow& to, size_t offset,
                std::span<const std::byte> bytes) {
  const size_t size = BytesWithin(to, offset, bytes.size());
  if (size == 0) return;
  const size_t from = std::max(to.begin, offset);
  std::memcpy(to.At(from), bytes.data() + (from - offset), size);
}

void CopyWithin(const PackedWindow& to, size_t offset,
                std::span<const float> values) {
  CopyWithin(to, offset, std::as_bytes(values));
}

// Rows of tensors that lie side by side in a panel.
struct RowRun {
  const TensorRef* ref;
  int64_t begin;
  int64_t end;
};
using PanelRows = std::vector<RowRun>;

// Rows of tensors one after the other.
std::vector<PanelRows> IntoPanels(const std::vector<RowRun>& runs) {
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

// Returns all rows of a tensor.
std::vector<PanelRows> AllRows(const TensorRef* ref) {
  return IntoPanels({{ref, 0, ref->shape[0]}});
}

// Returns panels of which one half is of each tensor.
std::vector<PanelRows> Interleave(const TensorRef* a, const TensorRef* b,
                                  ColumnRange rows) {
  std::vector<PanelRows> panels;
  constexpr int64_t kHalf = kPanelColumns / 2;
  for (int64_t row = rows.begin; row < rows.end; row += kHalf) {
    const int64_t end = std::min<int64_t>(row + kHalf, rows.end);
    panels.push_back({{a, row, end}, {b, row, end}});
  }
  return panels;
}

// A range of a vector, or of the rows of a matrix that lies as one.
struct VectorPart {
  TensorRole role;
  ColumnRange range;
};

// Packs what tensors of one unit have in a window of its packed unit.
class WindowPacker {
 public:
  WindowPacker(std::vector<TensorRef> tensors, const TensorSource& source,
               LoadProgress progress, const PackedWindow& to,
               MatrixPacker* packer, ComputePool* pool, MemoryBudget* budget)
      : tensors_(std::move(tensors)),
        source_(source),
        progress_(progress),
        left_(to.bytes()),
        to_(to),
        packer_(packer),
        pool_(pool),
        budget_(budget) {
    TurnTo(0);
  }

  // Returns the unit's tensor of the role, of the expert at hand if it is an
  // expert's; or null.
  const TensorRef* Find(TensorRole role) const {
    for (const TensorRef& t : at_hand_) {
      if (t.role == role) return &t;
    }
    return nullptr;
  }
  // Has Find look for tensors of an expert. What is no expert's comes first.
  void TurnTo(int expert) {
    const auto begin = std::find_if(
        tensors_.begin(), tensors_.end(),
        [&](const TensorRef& tensor) { return tensor.expert == expert; });
    const auto end = std::find_if(
        begin, tensors_.end(),
        [&](const auto& tensor) { return tensor.expert != expert; });
    at_hand_ =
        std::span(tensors_).subspan(begin - tensors_.begin(), end - begin);
  }
  absl::Status PackMatrix(const MatrixLayout& layout,
                          const std::vector<PanelRows>& panels);
  // Pack a panel, of which `runs` are the rows, to `out`, working with the
  // floats of its rows.
  absl::Status PackNumbers(const MatrixLayout& layout, int panel,
                           const PanelRows& runs, float* staging, int thread,
                           std::byte* out);
  absl::Status PackCodes(const MatrixLayout& layout, int panel,
                         const PanelRows& runs, float* staging, std::byte* out);
  // Packs a table of which rows are looked up, in its dtype or in the
  // checkpoint's codes, from `offset` on
  // in the packed unit.
  absl::Status PackTable(const TensorRef& ref, int64_t rows, size_t offset,
                         const CodeFormat* codes);
  // Packs parts of vectors, one after the other, or a whole vector; nothing if
  // the layout is empty.
  absl::Status PackVectors(const VectorLayout& layout,
                           const std::vector<VectorPart>& parts);
  // Packs a matrix that lies as a vector of float32, a row at a time.
  absl::Status PackRows(const TensorRef& ref, ColumnRange rows, size_t offset);
  absl::Status PackVector(const VectorLayout& layout, TensorRole role) {
    return PackVectors(layout,
                       {{role, {0, static_cast<int32_t>(layout.length)}}});
  }
  // Packs slots of a vector, or side by side of a matrix, of which the ranks
  // have shares. With `interleave`, gate and up take turns in their panels.
  absl::Status PackSlots(const VectorLayout& layout,
                         const std::vector<WeightSlot>& slots,
                         const TensorShard& shard, int32_t head_dim,
                         bool interleave);
  absl::Status PackSlots(const MatrixLayout& layout,
                         const std::vector<WeightSlot>& slots,
                         const TensorShard& shard, int32_t head_dim,
                         bool interleave);
  // Reports what nothing was packed into.
  absl::Status Finish() { return progress_(left_); }

 private:
  absl::Status Report(uint64_t bytes) {
    left_ -= bytes;
    return progress_(bytes);
  }

  const std::vector<TensorRef> tensors_;
  const TensorSource& source_;
  const LoadProgress progress_;
  uint64_t left_;  // of the window, not reported yet
  const PackedWindow& to_;
  std::span<const TensorRef> at_hand_;
  MatrixPacker* const packer_;
  ComputePool* const pool_;
  MemoryBudget* const budget_;
};

absl::Status WindowPacker::PackMatrix(const MatrixLayout& layout,
                                      const std::vector<PanelRows>& panels) {
  const auto within = [&](int panel) {
    return BytesWithin(to_, layout.panel_offset(panel),
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
      const size_t offset = layout.panel_offset(panel);
      const size_t bytes = layout.panel_bytes(panel);
      const bool whole = to_.Holds(offset, bytes);
      std::byte* const cut = cut_panels + thread * panel_bytes;
      if (!whole) std::memset(cut, 0, bytes);
      std::byte* const out = whole ? to_.At(offset) : cut;
      absl::Status status =
          layout.coded()
              ? PackCodes(layout, panel, panels[panel], rows, out)
              : PackNumbers(layout, panel, panels[panel], rows, thread, out);
      if (!status.ok()) {
        error.Set(std::move(status));
      } else if (!whole) {
        CopyWithin(to_, offset, std::span<const std::byte>(cut, bytes));
      }
    });
    SLUICE_RETURN_IF_ERROR(error.Get());
    uint64_t done = 0;
    for (int panel = first; panel < first + count; ++panel) {
      done += within(panel);
    }
    SLUICE_RETURN_IF_ERROR(Report(done));
  }
  return absl::OkStatus();
}

absl::Status WindowPacker::PackNumbers(const MatrixLayout& layout, int panel,
                                       const PanelRows& runs, float* staging,
                                       int thread, std::byte* out) {
  float* next = staging;
  for (const RowRun& run : runs) {
    SLUICE_RETURN_IF_ERROR(
        source_.ReadRows(*run.ref, run.begin, run.end, next));
    next += (run.end - run.begin) * layout.k;
  }
  return Annotate(packer_->Pack(layout, panel, staging, thread, out),
                  runs[0].ref->name);
}

absl::Status WindowPacker::PackCodes(const MatrixLayout& layout, int panel,
                                     const PanelRows& runs, float* staging,
                                     std::byte* out) {
  auto* const rows = reinterpret_cast<std::byte*>(staging);
  std::byte* const groups = out;
  bool has_groups = false;
  std::memset(groups, 0, layout.order_bytes);
  out += layout.order_bytes;
  int32_t column = layout.panel_begin(panel);
  for (const RowRun& run : runs) {
    const CodeFormat& format = *layout.CodesAt(column).format;
    SLUICE_RETURN_IF_ERROR(
        source_.ReadCodes(*run.ref, format, run.begin, run.end, rows));
    const std::byte* const own = GroupsOfRow(format, rows, layout.k);
    if (own != nullptr && !has_groups) {
      std::memcpy(groups, own, layout.k);
      has_groups = true;
    }
    for (int64_t row = run.begin; row < run.end; row += kStripColumns) {
      const auto count =
          static_cast<int32_t>(std::min<int64_t>(kStripColumns, run.end - row));
      const CodedColumns& some = layout.CodesAt(column);
      const size_t row_bytes = format.row_bytes(layout.k);
      SLUICE_RETURN_IF_ERROR(
          Annotate(EncodeStrip(format, rows + (row - run.begin) * row_bytes,
                               count, layout.k, out, groups),
                   run.ref->name));
      out += some.strip_bytes;
      column += count;
    }
  }
  return absl::OkStatus();
}

absl::Status WindowPacker::PackTable(const TensorRef& ref, int64_t rows,
                                     size_t offset, const CodeFormat* codes) {
  const int64_t cols = ref.shape[1];
  const DType dtype = packer_->rules().table_dtype;
  const size_t row_bytes =
      codes == nullptr ? ElementBytes(dtype) * cols : codes->row_bytes(cols);
  const size_t table_bytes = row_bytes * rows;
  if (!to_.Touches(offset, table_bytes)) return absl::OkStatus();
  // The rows that the window has some of.
  const auto first_row =
      static_cast<int64_t>((std::max(to_.begin, offset) - offset) / row_bytes);
  const auto end_row = static_cast<int64_t>(
      (std::min(to_.end, offset + table_bytes) - offset + row_bytes - 1) /
      row_bytes);
  const int threads = pool_->num_threads();
  const bool direct = dtype == DType::kFloat32 && codes == nullptr;
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
      const bool whole = to_.Holds(at, bytes);
      std::byte* const out =
          whole ? to_.At(at) : cut_chunks + thread * chunk_bytes;
      float* const values = direct ? reinterpret_cast<float*>(out)
                                   : staging.as<float>() + thread * floats;
      absl::Status status =
          codes == nullptr ? source_.ReadRows(ref, begin, end, values)
                           : source_.ReadCodes(ref, *codes, begin, end, out);
      if (!status.ok()) return error.Set(std::move(status));
      if (!direct && codes == nullptr) {
        ConvertFloats(values, (end - begin) * cols, dtype, out);
      }
      if (!whole) CopyWithin(to_, at, std::span<const std::byte>(out, bytes));
    });
    SLUICE_RETURN_IF_ERROR(error.Get());
    const size_t at = offset + row_of(first) * row_bytes;
    SLUICE_RETURN_IF_ERROR(Report(
        BytesWithin(to_, at, offset + row_of(first + count) * row_bytes - at)));
  }
  return absl::OkStatus();
}

absl::Status WindowPacker::PackVectors(const VectorLayout& layout,
                                       const std::vector<VectorPart>& parts) {
  if (!to_.Touches(layout.offset, layout.bytes())) return absl::OkStatus();
  if (const TensorRef* first = Find(parts[0].role); first->shape.size() == 2) {
    return PackRows(*first, parts[0].range, layout.offset);
  }
  std::vector<float> values(layout.length);
  std::map<TensorRole, std::vector<float>> read;
  float* next = values.data();
  for (const auto& [role, range] : parts) {
    const TensorRef* ref = Find(role);
    std::vector<float>& whole = read[role];
    if (whole.empty()) {
      whole.resize(ref->shape[0]);
      SLUICE_RETURN_IF_ERROR(source_.ReadRows(*ref, 0, 1, whole.data()));
    }
    next =
        std::copy(whole.data() + range.begin, whole.data() + range.end, next);
  }
  if (layout.dtype == DType::kFloat32) {
    CopyWithin(to_, layout.offset, std::span<const float>(values));
  } else {
    std::vector<std::byte> typed(layout.bytes());
    ConvertFloats(values.data(), layout.length, layout.dtype, typed.data());
    CopyWithin(to_, layout.offset, std::span<const std::byte>(typed));
  }
  return absl::OkStatus();
}

absl::Status WindowPacker::PackRows(const TensorRef& ref, ColumnRange rows,
                                    size_t offset) {
  std::vector<float> values(ref.shape[1]);
  const size_t bytes = values.size() * sizeof(float);
  for (int32_t row = rows.begin; row < rows.end; ++row, offset += bytes) {
    if (!to_.Touches(offset, bytes)) continue;
    SLUICE_RETURN_IF_ERROR(source_.ReadRows(ref, row, row + 1, values.data()));
    CopyWithin(to_, offset, std::span<const float>(values));
  }
  return absl::OkStatus();
}

absl::Status WindowPacker::PackSlots(const VectorLayout& layout,
                                     const std::vector<WeightSlot>& slots,
                                     const TensorShard& shard, int32_t head_dim,
                                     bool interleave) {
  std::vector<VectorPart> parts;
  for (const WeightSlot& slot : slots) {
    parts.push_back({slot.role, shard.RowsOf(slot, head_dim)});
  }
  if (!interleave || slots.size() < 2) return PackVectors(layout, parts);
  // Halves of panels by turns.
  std::vector<VectorPart> mixed;
  constexpr int32_t kHalf = kPanelColumns / 2;
  const ColumnRange range = parts[0].range;
  for (int32_t row = range.begin; row < range.end; row += kHalf) {
    const int32_t end = std::min(row + kHalf, range.end);
    for (const VectorPart& part : parts)
      mixed.push_back({part.role, {row, end}});
  }
  return PackVectors(layout, mixed);
}

absl::Status WindowPacker::PackSlots(const MatrixLayout& layout,
                                     const std::vector<WeightSlot>& slots,
                                     const TensorShard& shard, int32_t head_dim,
                                     bool interleave) {
  if (interleave && slots.size() == 2) {
    return PackMatrix(layout,
                      Interleave(Find(slots[0].role), Find(slots[1].role),
                                 shard.RowsOf(slots[0], head_dim)));
  }
  std::vector<RowRun> runs;
  for (const WeightSlot& slot : slots) {
    const ColumnRange rows = shard.RowsOf(slot, head_dim);
    runs.push_back({Find(slot.role), rows.begin, rows.end});
  }
  return PackMatrix(layout, IntoPanels(runs));
}

}  // namespace

absl::Status PackedWeights::PackLayer(int layer, const TensorSource& source,
                                      LoadProgress progress,
                                      const PackedWindow& to) {
  const LayerLayout& layout = this->layer(layer);
  const LayerWeights weights = WeightsOf(spec_, spec_.layer(layer));
  const auto touches = [&](int expert) {
    return to.Touches(layout.expert_begin(expert), layout.expert.bytes);
  };
  int first_expert = 0;
  int end_expert = weights.experts;
  while (first_expert < end_expert && !touches(first_expert)) ++first_expert;
  while (first_expert < end_expert && !touches(end_expert - 1)) --end_expert;
  WindowPacker pack(LayerTensors(spec_, layer, first_expert, end_expert),
                    source, progress, to, matrices_.get(), pool_, budget_);
  const TensorShard shard = shape_.shard(spec_);
  const bool turns = spec_.gated_mlp && matrices_->rules().interleaves_gate();
  for (const LayerWeights::Vector& vector : weights.vectors) {
    const bool of_up = vector.part == LayerVector::kUpBias;
    SLUICE_RETURN_IF_ERROR(
        pack.PackSlots(*layout.vectors()[static_cast<int>(vector.part)],
                       vector.slots, shard, spec_.head_dim, of_up && turns));
    if (of_up) {
      SLUICE_RETURN_IF_ERROR(pack.PackSlots(layout.up_bias_typed, vector.slots,
                                            shard, spec_.head_dim, false));
    }
  }
  for (const LayerWeights::Matrix& matrix : weights.matrices) {
    SLUICE_RETURN_IF_ERROR(pack.PackSlots(
        *layout.matrices()[static_cast<int>(matrix.part)], matrix.slots, shard,
        spec_.head_dim, matrix.part == LayerMatrix::kUp && turns));
  }
  for (int expert = first_expert; expert < end_expert; ++expert) {
    const size_t begin = layout.expert_begin(expert);
    pack.TurnTo(expert);
    const auto shifted = [&](auto part) {
      part.offset += begin;
      return part;
    };
    for (const LayerWeights::Vector& vector : weights.expert_vectors) {
      const bool of_up = vector.part == LayerVector::kUpBias;
      SLUICE_RETURN_IF_ERROR(pack.PackSlots(
          shifted(of_up ? layout.expert.up_bias : layout.expert.down_bias),
          vector.slots, shard, spec_.head_dim, of_up && turns));
    }
    for (const LayerWeights::Matrix& matrix : weights.expert_matrices) {
      const bool up = matrix.part == LayerMatrix::kUp;
      SLUICE_RETURN_IF_ERROR(
          pack.PackSlots(shifted(up ? layout.expert.up : layout.expert.down),
                         matrix.slots, shard, spec_.head_dim, up && turns));
    }
  }
  return pack.Finish();
}

absl::Status PackedWeights::PackEmbedding(const TensorSource& source,
                                          LoadProgress progress,
                                          const PackedWindow& to) {
  const EmbeddingLayout& layout = embedding();
  WindowPacker pack(EmbeddingTensors(spec_), source, progress, to,
                    matrices_.get(), pool_, budget_);
  SLUICE_RETURN_IF_ERROR(pack.PackTable(*pack.Find(Role::kEmbedding),
                                        spec_.vocab_size, layout.table,
                                        layout.codes));
  if (const TensorRef* p = pack.Find(Role::kPositionEmbedding)) {
    SLUICE_RETURN_IF_ERROR(
        pack.PackTable(*p, layout.position_rows, layout.positions, nullptr));
  }
  if (const TensorRef* p = pack.Find(Role::kProjectIn)) {
    SLUICE_RETURN_IF_ERROR(pack.PackMatrix(layout.project_in, AllRows(p)));
  }
  SLUICE_RETURN_IF_ERROR(
      pack.PackVector(layout.norm.weight, Role::kEmbedNormWeight));
  SLUICE_RETURN_IF_ERROR(
      pack.PackVector(layout.norm.bias, Role::kEmbedNormBias));
  return pack.Finish();
}

absl::Status PackedWeights::PackHead(int section, const TensorSource& source,
                                     LoadProgress progress,
                                     const PackedWindow& to) {
  const HeadSectionLayout& layout = head()[section];
  WindowPacker pack(HeadTensors(spec_), source, progress, to, matrices_.get(),
                    pool_, budget_);
  SLUICE_RETURN_IF_ERROR(
      pack.PackVector(layout.norm.weight, Role::kFinalNormWeight));
  SLUICE_RETURN_IF_ERROR(
      pack.PackVector(layout.norm.bias, Role::kFinalNormBias));
  const TensorRef* p = pack.Find(Role::kProjectOut);
  if (p != nullptr && layout.project_out.n > 0) {
    SLUICE_RETURN_IF_ERROR(pack.PackMatrix(layout.project_out, AllRows(p)));
  }
  const int64_t first = shape_.shard(spec_).vocab.begin + layout.first_column;
  SLUICE_RETURN_IF_ERROR(pack.PackVectors(
      layout.head_bias,
      {{Role::kHeadBias,
        {static_cast<int32_t>(first),
         static_cast<int32_t>(first + layout.head_bias.length)}}}));
  SLUICE_RETURN_IF_ERROR(pack.PackMatrix(
      layout.head,
      IntoPanels({{pack.Find(Role::kHead), first, first + layout.head.n}})));
  return pack.Finish();
}

}  // namespace sluice
