#include "runtime/kernels/cuda/attention/attention_inputs.h"

#include <algorithm>
#include <limits>

#include "common/status_macros.h"
#include "runtime/kv/kv_layout.h"

namespace sluice {
namespace {

constexpr int64_t kMax = std::numeric_limits<int32_t>::max();

absl::Status Check(const SegmentView& segment, int64_t group) {
  const int64_t end = int64_t{segment.start} + segment.num_tokens;
  const int64_t room = static_cast<int64_t>(segment.pages.size()) * kPageTokens;
  if (segment.start < 0 || segment.num_tokens <= 0 || end > room ||
      end + kPageTokens > kMax || segment.num_tokens * group > kMax) {
    return InvalidArgument("attention of ", segment.num_tokens,
                           " tokens from position ", segment.start,
                           " on with pages for ", room);
  }
  if (segment.kv == nullptr ||
      reinterpret_cast<uintptr_t>(segment.kv) % 16 != 0) {
    return absl::InvalidArgumentError(
        "attention of KV pages that do not lie at a multiple of 16 bytes");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FillAttentionInputs(const BatchView& batch, int32_t first_segment,
                                 int32_t count, int32_t group, int32_t window,
                                 int32_t tile_rows, AttentionInputs* out) {
  out->kv = nullptr;
  for (const SegmentView& view : batch.segments.subspan(first_segment, count)) {
    if (out->kv == nullptr || view.kv < out->kv) out->kv = view.kv;
  }
  out->segments.clear();
  out->pages.clear();
  out->decode.clear();
  out->prefill.clear();
  out->max_context = 0;
  out->tile_begin.assign(1, 0);
  for (const SegmentView& view : batch.segments.subspan(first_segment, count)) {
    SLUICE_RETURN_IF_ERROR(Check(view, group));
    const int32_t end = view.start + view.num_tokens;
    const int32_t used = PagesOf(end);
    AttentionSegment segment;
    segment.kv_offset = view.kv - out->kv;
    segment.first_page = static_cast<int32_t>(out->pages.size());
    segment.row = view.row;
    segment.start = view.start;
    segment.num_tokens = view.num_tokens;
    out->pages.insert(out->pages.end(), view.pages.begin(),
                      view.pages.begin() + used);
    out->segments.push_back(segment);
    if (view.num_tokens == 1) {
      out->decode.push_back(segment);
      out->max_context =
          std::max(out->max_context, window > 0 ? std::min(end, window) : end);
      continue;
    }
    out->prefill.push_back(segment);
    const int64_t rows = int64_t{view.num_tokens} * group;
    const int64_t tiles =
        out->tile_begin.back() + (rows + tile_rows - 1) / tile_rows;
    if (tiles > kMax) {
      return InvalidArgument("attention of ", tiles, " tiles in one call");
    }
    out->tile_begin.push_back(static_cast<int32_t>(tiles));
  }
  if (static_cast<int64_t>(out->pages.size()) > kMax) {
    return InvalidArgument("attention of ", out->pages.size(),
                           " pages in one call");
  }
  return absl::OkStatus();
}

}  // namespace sluice
