#include "runtime/kernels/cuda/attention/batch_attention.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"
#include "runtime/placement/backend_space.h"

namespace sluice {
namespace {

// The alignment of each part of what is uploaded.
constexpr size_t kAlignment = 16;

static_assert(sizeof(AttentionSegment) == GpuSpace::kSegmentBytes &&
              sizeof(KvRun) == GpuSpace::kRunBytes);

}  // namespace

absl::StatusOr<BatchAttention> BatchAttention::Create(const Options& options) {
  SLUICE_ASSIGN_OR_RETURN(const PrefillPlan prefill,
                          PlanPrefill(options.shape, options.device));
  return BatchAttention(options, prefill);
}

absl::StatusOr<size_t> BatchAttention::WorkspaceBytes(
    const AttentionShape& shape, const AttentionDevice& device, float sparsity,
    int32_t max_rows, int32_t max_context) {
  max_context = GpuSpace::PlannedContext(max_context);
  size_t max = 0;
  for (int64_t sequences = 1; sequences <= max_rows; sequences *= 2) {
    SLUICE_ASSIGN_OR_RETURN(
        const DecodePlan plan,
        PlanDecode(shape, device, static_cast<int32_t>(sequences),
                   max_context));
    max = std::max(max, plan.workspace_bytes);
  }
  max = std::min(max, GpuSpace::kMaxAttention);
  if (sparsity >= 1) return max;
  // One sequence must have room, and all of them may.
  SLUICE_ASSIGN_OR_RETURN(
      const SparsePlan one,
      PlanSparse(shape, device, 1, max_context, sparsity, SIZE_MAX));
  return std::max(
      one.workspace_bytes,
      std::min(GpuSpace::kMaxAttention, one.workspace_bytes * max_rows));
}

int32_t BatchAttention::Together(const BatchView& batch, int32_t first,
                                 int32_t count) const {
  const size_t max = options_.ring->max_bytes();
  size_t bytes = GpuSpace::BatchUpload();
  for (int32_t i = 0; i < count; ++i) {
    const SegmentView& segment = batch.segments[first + i];
    bytes += GpuSpace::SegmentUpload(segment.num_tokens,
                                     segment.start + segment.num_tokens);
    // Rows of padding before the segment have positions, too.
    if (i > 0) {
      const SegmentView& before = batch.segments[first + i - 1];
      bytes += sizeof(int32_t) * (segment.row - before.row - before.num_tokens);
    }
    if (bytes > max && i > 0) return i;
  }
  return count;
}

absl::Status BatchAttention::Attend(const BatchView& batch, int32_t first,
                                    int32_t count, const Layer& layer,
                                    float* qkv, void* out) {
  for (const int32_t end = first + count; first < end;) {
    const int32_t part = Together(batch, first, end - first);
    SLUICE_RETURN_IF_ERROR(AttendPart(batch, first, part, layer, qkv, out));
    first += part;
  }
  return absl::OkStatus();
}

template <typename T>
size_t BatchAttention::Add(const std::vector<T>& values) {
  const size_t at =
      (content_.size() + kAlignment - 1) / kAlignment * kAlignment;
  const size_t bytes = values.size() * sizeof(T);
  content_.resize(at + bytes);
  if (bytes > 0) std::memcpy(content_.data() + at, values.data(), bytes);
  return at;
}

// For single tokens only, the parts before the pages have sizes that depend on
// the number of segments only.
BatchAttention::Places BatchAttention::Collect() {
  content_.clear();
  Places at = {};
  at.segments = at.decode = at.prefill = Add(batch_.segments);
  at.runs = Add(runs_);
  at.positions = Add(positions_);
  // If there is one kind only, its segments are all of them.
  if (!batch_.decode.empty() && !batch_.prefill.empty()) {
    at.decode = Add(batch_.decode);
    at.prefill = Add(batch_.prefill);
  }
  at.tile_begin = Add(batch_.tile_begin);
  at.pages = Add(batch_.pages);
  return at;
}

absl::StatusOr<BatchAttention::Places> BatchAttention::Prepare(
    const BatchView& batch, int32_t first, int32_t count, int32_t window) {
  SLUICE_RETURN_IF_ERROR(FillAttentionInputs(batch, first, count,
                                             options_.shape.group(), window,
                                             prefill_.tile_rows, &batch_));
  longest_run_ = MakeKvRuns(batch, first, count, &runs_);
  first_row_ = batch.segments[first].row;
  const SegmentView& last = batch.segments[first + count - 1];
  positions_.assign(last.row + last.num_tokens - first_row_, 0);
  for (const SegmentView& segment : batch.segments.subspan(first, count)) {
    for (int32_t i = 0; i < segment.num_tokens; ++i) {
      positions_[segment.row - first_row_ + i] = segment.start + i;
    }
  }
  return Collect();
}

size_t BatchAttention::UploadBound(int32_t segments, int32_t positions) {
  return GpuSpace::BatchUpload() +
         segments * GpuSpace::SegmentUpload(1, positions);
}

absl::StatusOr<std::span<const std::byte>> BatchAttention::UploadOf(
    const BatchView& batch) {
  const auto count = static_cast<int32_t>(batch.segments.size());
  if (Together(batch, 0, count) < count) return std::span<const std::byte>();
  // The arena's address makes no difference.
  segments_.assign(batch.segments.begin(), batch.segments.end());
  for (SegmentView& segment : segments_) {
    segment.kv = static_cast<std::byte*>(options_.workspace);
  }
  BatchView view = batch;
  view.segments = segments_;
  SLUICE_RETURN_IF_ERROR(Prepare(view, 0, count, 0).status());
  return std::span<const std::byte>(content_);
}

absl::Status BatchAttention::AttendPart(const BatchView& batch, int32_t first,
                                        int32_t count, const Layer& layer,
                                        float* qkv, void* out) {
  const AttentionShape& shape = options_.shape;
  const cudaStream_t stream = options_.stream;
  SLUICE_ASSIGN_OR_RETURN(const Places at,
                          Prepare(batch, first, count, layer.window));
  SLUICE_ASSIGN_OR_RETURN(const std::byte* const uploaded,
                          options_.ring->Put(content_));
  const auto* const segments =
      reinterpret_cast<const AttentionSegment*>(uploaded + at.segments);
  const auto* const pages =
      reinterpret_cast<const int32_t*>(uploaded + at.pages);

  const int32_t head_dim = shape.kv.head_dim;
  const int32_t q_width = shape.num_heads * head_dim;
  const int32_t kv_width = shape.kv.num_kv_heads * head_dim;
  const int64_t stride = q_width + 2 * kv_width;
  SLUICE_RETURN_IF_ERROR(RotateRows(
      layer.rotary, reinterpret_cast<const int32_t*>(uploaded + at.positions),
      static_cast<int32_t>(positions_.size()), shape.num_heads, head_dim,
      stride, qkv + first_row_ * stride, stream));
  KvAppendArgs append;
  append.block = MakeKvBlock(shape.kv);
  append.num_kv_heads = shape.kv.num_kv_heads;
  append.kv = batch_.kv;
  append.segments = segments;
  append.pages = pages;
  append.runs = reinterpret_cast<const KvRun*>(uploaded + at.runs);
  append.num_runs = static_cast<int32_t>(runs_.size());
  append.k = qkv + q_width;
  append.v = append.k + kv_width;
  append.stride = stride;
  append.rotary = layer.rotary;
  SLUICE_RETURN_IF_ERROR(
      AppendKv(append, shape.kv.format, longest_run_, stream));

  AttentionData data;
  data.q = qkv;
  data.q_stride = stride;
  data.out = out;
  data.kv = batch_.kv;
  data.pages = pages;
  data.window = layer.window;
  data.scale = layer.scale;
  if (!batch_.decode.empty()) {
    data.segments =
        reinterpret_cast<const AttentionSegment*>(uploaded + at.decode);
    SLUICE_RETURN_IF_ERROR(AttendDecode(data));
  }
  if (batch_.prefill.empty()) return absl::OkStatus();
  data.segments =
      reinterpret_cast<const AttentionSegment*>(uploaded + at.prefill);
  return LaunchPrefill(
      shape, options_.device, prefill_, data,
      static_cast<int32_t>(batch_.prefill.size()),
      reinterpret_cast<const int32_t*>(uploaded + at.tile_begin),
      batch_.tile_begin.back(), stream);
}

absl::Status BatchAttention::AttendDecode(const AttentionData& data) {
  const AttentionShape& shape = options_.shape;
  const auto sequences = static_cast<int32_t>(batch_.decode.size());
  int32_t context = GpuSpace::PlannedContext(batch_.max_context);
  if (data.window > 0) context = std::min(context, data.window);
  if (options_.sparsity < 1) {
    SLUICE_ASSIGN_OR_RETURN(
        const SparsePlan plan,
        PlanSparse(shape, options_.device, sequences, context,
                   options_.sparsity, options_.workspace_bytes));
    return LaunchSparse(shape, options_.device, plan, data, options_.workspace,
                        options_.stream);
  }
  SLUICE_ASSIGN_OR_RETURN(const DecodePlan plan,
                          PlanDecode(shape, options_.device, sequences, context,
                                     options_.workspace_bytes));
  return LaunchDecode(shape, options_.device, plan, data, options_.workspace,
                      options_.stream);
}

}  // namespace sluice
