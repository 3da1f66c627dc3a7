#include "runtime/kernels/cpu/attention_scratch.h"

#include <type_traits>

namespace sluice {
namespace {

// Parts begin on cache lines.
constexpr size_t kLine = 64;

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Rows are whole vectors, of any processor, and whole groups.
int32_t RowStride(int32_t head_dim) {
  return static_cast<int32_t>(RoundUp(head_dim, kKvGroup));
}

int32_t Groups(int32_t head_dim) { return RowStride(head_dim) / kKvGroup; }

// Whole pages, the first of which may be begun in the middle.
int32_t ScoreStride(int32_t sparse_context) {
  if (sparse_context == 0) return 0;
  return static_cast<int32_t>(RoundUp(sparse_context, kPageTokens)) +
         kPageTokens;
}

}  // namespace

size_t AttentionScratch::Place(int32_t head_dim, int32_t sparse_context,
                               std::byte* base, Parts* parts) {
  size_t used = 0;
  const auto take = [&](auto*& part, size_t n) {
    part =
        reinterpret_cast<std::remove_reference_t<decltype(part)>>(base + used);
    used += RoundUp(n * sizeof(*part), kLine);
  };
  const size_t stride = RowStride(head_dim);
  const size_t groups = Groups(head_dim);
  const size_t scores = ScoreStride(sparse_context);
  take(parts->query, kAttentionRows * stride);
  take(parts->accumulator, kAttentionRows * stride);
  take(parts->ordered, stride + 1);
  take(parts->query_words, kAttentionRows * stride / 2);
  take(parts->query_units, kAttentionRows * groups * 2);
  take(parts->sums, kAttentionRows * (1 + groups) * kSumLanes);
  take(parts->page_scales.scales, groups * kPageTokens);
  take(parts->page_scales.minima, groups * kPageTokens);
  take(parts->page_scales.largest, groups);
  take(parts->weight_codes, kGroupRows * groups * kPageTokens);
  take(parts->weight_units, kGroupRows * groups);
  take(parts->scores, kGroupRows * scores);
  take(parts->kept, scores);
  take(parts->kept_weights, scores);
  take(parts->masks, scores / kPageTokens);
  return used;
}

AttentionScratch::AttentionScratch(int32_t head_dim, int32_t sparse_context)
    : stride_(RowStride(head_dim)),
      groups_(Groups(head_dim)),
      sparse_context_(sparse_context),
      score_stride_(ScoreStride(sparse_context)),
      storage_(Bytes(head_dim, sparse_context)) {
  const auto address = reinterpret_cast<uintptr_t>(storage_.data());
  Place(head_dim, sparse_context,
        storage_.data() + (kLine - address % kLine) % kLine, &parts_);
}

size_t AttentionScratch::Bytes(int32_t head_dim, int32_t sparse_context) {
  Parts parts;
  return Place(head_dim, sparse_context, nullptr, &parts) + kLine;
}

}  // namespace sluice
