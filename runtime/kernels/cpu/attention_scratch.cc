#include "runtime/kernels/cpu/attention_scratch.h"

#include <type_traits>

namespace sluice {

AttentionScratch::AttentionScratch(int32_t head_dim, int32_t sparse_context)
    : sparse_context_(sparse_context) {
  constexpr size_t kLine = 64;
  const AttentionScratchSizes sizes(head_dim, sparse_context);
  stride_ = sizes.stride;
  groups_ = sizes.groups;
  score_stride_ = sizes.score_stride;
  storage_.resize(sizes.bytes);
  auto at = reinterpret_cast<uintptr_t>(storage_.data());
  size_t next = 0;
  const auto take = [&](auto*& part) {
    at = (at + kLine - 1) / kLine * kLine;
    part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(at);
    at += sizes.parts[next++];
  };
  take(parts_.query);
  take(parts_.accumulator);
  take(parts_.ordered);
  take(parts_.query_words);
  take(parts_.query_units);
  take(parts_.sums);
  take(parts_.page_scales.scales);
  take(parts_.page_scales.minima);
  take(parts_.page_scales.largest);
  take(parts_.weight_codes);
  take(parts_.weight_units);
  take(parts_.scores);
  take(parts_.kept);
  take(parts_.kept_weights);
  take(parts_.masks);
}

}  // namespace sluice
