#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "runtime/kernels/cuda/attention/attention_types.h"
#include "runtime/kv/batch_view.h"

namespace sluice {

// The description of a call for attention's kernels, in host memory, to be
// copied to the device as it is. Kept from call to call, it allocates no more.
struct AttentionInputs {
  // The layer's pages begin here, at the least of the segments' addresses, from
  // which their offsets count. All that follows is the same for every layer
  // whose pages lie alike.
  std::byte* kv = nullptr;
  // The segments in the batch's order, as kernels that write K and V want.
  std::vector<AttentionSegment> segments;
  // The table of page numbers that segments point into.
  std::vector<int32_t> pages;
  // The same segments, those of one new token apart from the others.
  std::vector<AttentionSegment> decode;
  std::vector<AttentionSegment> prefill;
  // The most positions that one of `decode` attends; 0 if there are none.
  int32_t max_context = 0;
  // The first tile of each of `prefill`, then how many, for LaunchPrefill.
  std::vector<int32_t> tile_begin;
};

// Fills `out` from segments [first_segment, first_segment + count). `group`:
// query heads of a KV head; `window`: positions that a token sees, 0 for all;
// `tile_rows`: PrefillPlan's. kInvalidArgument: a segment without memory at a
// multiple of 16 bytes, without tokens or with too few pages; sizes that do not
// fit into 32 bits.
absl::Status FillAttentionInputs(const BatchView& batch, int32_t first_segment,
                                 int32_t count, int32_t group, int32_t window,
                                 int32_t tile_rows, AttentionInputs* out);

}  // namespace sluice
