#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <random>
#include <vector>

#include "runtime/sample/distribution.h"
#include "runtime/sample/sampler.h"

// Counts what this program allocates. Not inlined, or GCC takes the pairs apart
// and warns that they do not match.

namespace {
std::atomic<int64_t> allocations = 0;
}  // namespace

[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size,
                                     const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

namespace sluice {
namespace {

TEST(AllocationTest, NoneInSteadyState) {
  std::mt19937 random(1);
  std::vector<float> given(32000);
  for (float& l : given) l = static_cast<float>(random() % 100000) / 10000;
  std::vector<float> logits(given.size());
  SamplerScratch scratch;
  for (const SamplingParams& params : std::vector<SamplingParams>{
           {},
           {.logprobs = 0},
           {.temperature = 1},
           {.temperature = 1, .top_k = 50, .top_p = 0.9f},
           {.temperature = 1, .top_p = 0.9f, .min_p = 0.01f},
           {.temperature = 1, .repetition_penalty = 2}}) {
    Sampler sampler(params, 3);
    sampler.Observe(0, std::vector<int32_t>{1, 2, 3});
    int64_t before = 0;
    for (int round = 0; round < 3; ++round) {
      before = allocations;
      logits = given;
      EXPECT_GE(sampler.Sample(logits, 10, scratch).token, 0);
    }
    EXPECT_EQ(allocations, before);
  }
}

TEST(AllocationTest, ScoringNeedsNone) {
  std::mt19937 random(1);
  std::vector<float> logits(32000);
  for (float& l : logits) l = static_cast<float>(random() % 100000) / 10000;
  SamplerScratch scratch;
  TokenLogprob top[20];
  int64_t before = 0;
  for (int round = 0; round < 3; ++round) {
    before = allocations;
    EXPECT_LT(ScoreToken(logits, 7, top, scratch), 0);
  }
  EXPECT_EQ(allocations, before);
}

}  // namespace
}  // namespace sluice
