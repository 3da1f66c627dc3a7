#include "scheduler/cost/slicing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace sluice {
namespace {

// What a slice takes, as a machine might: so much for each call, or a sweep of
// weights if that takes longer, and more with context.
struct SliceSeconds {
  double call = 0, row = 0, pair = 0, sweep = 0;
  double operator()(int32_t length, int32_t context) const {
    return call + std::max(sweep, row * length +
                                      pair * length * (context + length / 2.0));
  }
};

// The least of sum + (stages - 1) x max over all ways to cut `tokens` units.
double BruteForce(int tokens, int stages, const SliceSeconds& seconds) {
  double best = std::numeric_limits<double>::infinity();
  for (uint32_t cuts = 0; cuts < 1u << (tokens - 1); ++cuts) {
    double sum = 0, max = 0;
    int begin = 0;
    for (int end = 1; end <= tokens; ++end) {
      if (end < tokens && (cuts >> (end - 1) & 1) == 0) continue;
      const double t = seconds(end - begin, begin);
      sum += t;
      max = std::max(max, t);
      begin = end;
    }
    best = std::min(best, sum + (stages - 1) * max);
  }
  return best;
}

SliceSeconds RandomSeconds(std::mt19937_64& rng) {
  std::uniform_real_distribution<double> any(0, 1);
  return {.call = any(rng) < 0.5 ? 0 : any(rng),
          .row = any(rng),
          .pair = any(rng) < 0.3 ? 0 : 0.3 * any(rng),
          .sweep = any(rng) < 0.5 ? 0 : 5 * any(rng)};
}

TEST(BestSlicingTest, IsTheBestOfAllWaysToCut) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    const int tokens = 1 + static_cast<int>(rng() % 11);
    const int stages = 1 + static_cast<int>(rng() % 6);
    const SliceSeconds seconds = RandomSeconds(rng);
    const Slicing found = BestSlicing({{{tokens, 1}}}, 1, stages, seconds);
    const double best = BruteForce(tokens, stages, seconds);
    EXPECT_GE(found.seconds, best * (1 - 1e-9));
    EXPECT_LE(found.seconds, best * 1.001);
    // The lengths are such a cut.
    double sum = 0, max = 0;
    int at = 0;
    for (const int32_t length : found.lengths) {
      sum += seconds(length, at);
      max = std::max(max, seconds(length, at));
      at += length;
    }
    EXPECT_EQ(at, tokens);
    EXPECT_LE(sum + (stages - 1) * max, best * 1.001);
    EXPECT_DOUBLE_EQ(max, found.max_seconds);
  }
}

TEST(BestSlicingTest, LaterSlicesAreShorterAsTheyAttendToMore) {
  const SliceSeconds seconds = {.call = 0.01, .row = 0.001, .pair = 1e-6};
  const Slicing found = BestSlicing({{{4096, 1}}}, 32, 4, seconds);
  ASSERT_GT(found.lengths.size(), 3u);
  EXPECT_LT(found.lengths.back(), 0.6 * found.lengths.front());
  EXPECT_EQ(std::accumulate(found.lengths.begin(), found.lengths.end(), 0),
            4096);
}

TEST(BestSlicingTest, SweepsOfStreamedWeightsMakeSlicesLonger) {
  SliceSeconds seconds = {.call = 0.001, .row = 0.001};
  const auto slices = [&] {
    return BestSlicing({{{4096, 1}}}, 64, 4, seconds).lengths.size();
  };
  const size_t resident = slices();
  seconds.sweep = 1;
  const size_t streamed = slices();
  EXPECT_GT(resident, 2 * streamed);
  EXPECT_GT(streamed, 1u);
  seconds.sweep = 4.096;  // as long as the whole prompt's rows
  EXPECT_EQ(slices(), 1u);
}

TEST(BestSlicingTest, ManyPromptsInARowWantLongerSlices) {
  const SliceSeconds seconds = {.call = 0.05, .row = 0.001};
  const size_t one = BestSlicing({{{4096, 1}}}, 64, 4, seconds).lengths.size();
  const size_t many =
      BestSlicing({{{4096, 50}}}, 64, 4, seconds).lengths.size();
  EXPECT_GT(one, many);
  // With one stage nothing is gained.
  EXPECT_EQ(BestSlicing({{{4096, 1}}}, 64, 1, seconds).lengths.size(), 1u);
}

}  // namespace
}  // namespace sluice
