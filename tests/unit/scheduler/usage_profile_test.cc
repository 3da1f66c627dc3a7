#include "scheduler/steps/usage_profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace sluice {
namespace {

TEST(UsageProfileTest, OneSequence) {
  UsageProfile profile(10);
  EXPECT_EQ(profile.Peak(), 0);
  // The sequence is at position 9 now, and ends with step 11, at position 20.
  const UsageProfile::Use use = {.grows = 0, .end = 12, .known = 9, .max = 20};
  EXPECT_EQ(profile.PeakWith(use), 2);
  EXPECT_EQ(profile.Peak(), 0);
  profile.Add(use);
  EXPECT_EQ(profile.Peak(), 2);
  // This one ends earlier, and is in its second page from the third step on.
  const UsageProfile::Use brief = {.grows = 0, .end = 5, .known = 8, .max = 12};
  EXPECT_EQ(profile.PeakWith(brief), 4);
  // This one is gone before the first has two pages.
  const UsageProfile::Use gone = {.grows = 0, .end = 2, .known = 11, .max = 12};
  EXPECT_EQ(profile.PeakWith(gone), 3);
  for (int i = 0; i < 11; ++i) profile.Advance();
  EXPECT_EQ(profile.Peak(), 2);
  profile.Advance();
  EXPECT_EQ(profile.Peak(), 0);
  profile.Remove(use);  // nothing is left to take away
  EXPECT_EQ(profile.Peak(), 0);
}

TEST(UsageProfileTest, AnEndIsFollowedByRoom) {
  UsageProfile profile(1);
  profile.Add({.grows = 0, .end = 3, .known = 8, .max = 10});  // 8 9 10
  // This one grows from step 2 on: 3 3 3 4 5 6.
  EXPECT_EQ(profile.PeakWith({.grows = 2, .end = 6, .known = 3, .max = 6}), 13);
  EXPECT_EQ(profile.PeakWith({.grows = 3, .end = 13, .known = 1, .max = 10}),
            11);
}

TEST(UsageProfileTest, ADelayedPrefillEndsLater) {
  UsageProfile profile(1);
  // The prefill completes in step 1 to 3; then come two more positions: 4 4 5 6
  // 6 6.
  profile.Add({.grows = 1, .end = 6, .known = 4, .max = 6});
  const auto at = [&](int64_t step) {
    return profile.PeakWith(
               {.grows = step, .end = step + 1, .known = 100, .max = 100}) -
           100;
  };
  EXPECT_EQ(at(5), 6) << "from now on it counts with its known positions";
  for (int i = 0; i < 5; ++i) profile.Advance();
  EXPECT_EQ(profile.Peak(), 6);
  profile.Advance();
  EXPECT_EQ(profile.Peak(), 0);
}

// The profile equals the sum over all uses, step by step.
TEST(UsageProfileTest, EqualsTheSum) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    const int32_t page_tokens = 1 + static_cast<int32_t>(random() % 9);
    UsageProfile profile(page_tokens);
    std::vector<UsageProfile::Use> uses;
    const auto pages_at = [&](const UsageProfile::Use& use, int64_t step) {
      if (step >= use.end) return int64_t{0};
      const int64_t position = std::min<int64_t>(
          use.max, use.known + std::max<int64_t>(0, step - use.grows));
      return (position + page_tokens - 1) / page_tokens;
    };
    for (int i = 0; i < 100; ++i) {
      const uint32_t what = random() % 4;
      if (what == 0 && !uses.empty()) {
        const size_t chosen = random() % uses.size();
        profile.Remove(uses[chosen]);
        uses.erase(uses.begin() + static_cast<int64_t>(chosen));
      } else if (what == 1) {
        profile.Advance();
      } else {
        UsageProfile::Use use;
        use.known = 1 + static_cast<int32_t>(random() % 20);
        use.max = use.known + static_cast<int32_t>(random() % 30);
        use.grows = profile.now() + random() % 4;
        use.end = use.grows + random() % 4 + use.max - use.known + 1;
        int64_t peak = 0;
        for (int64_t step = profile.now(); step < profile.now() + 100; ++step) {
          int64_t sum = pages_at(use, step);
          for (const UsageProfile::Use& other : uses)
            sum += pages_at(other, step);
          peak = std::max(peak, sum);
        }
        ASSERT_EQ(profile.PeakWith(use), peak);
        profile.Add(use);
        uses.push_back(use);
        ASSERT_EQ(profile.Peak(), peak);
      }
    }
  }
}

TEST(PageStepsTest, EqualsTheSum) {
  for (const int32_t page_tokens : {1, 3, 32}) {
    for (int32_t known = 1; known < 70; ++known) {
      int64_t sum = 0;
      for (int32_t last = known; last < 140; ++last) {
        sum += (last + page_tokens - 1) / page_tokens;
        ASSERT_EQ(PageSteps(known, last, page_tokens), sum);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
