#include "runtime/text/stop_strings.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace sluice {
namespace {

TEST(StopStringMatcherTest, PassesTextThrough) {
  StopStringMatcher none({});
  EXPECT_EQ(none.Append("abc"), "abc");
  EXPECT_EQ(none.Flush(), "");
  StopStringMatcher empty({""});
  EXPECT_EQ(empty.Append("abc"), "abc");
  EXPECT_FALSE(empty.stopped());
  EXPECT_EQ(empty.matched(), "");
}

TEST(StopStringMatcherTest, StopsInsideAPiece) {
  StopStringMatcher matcher({"\n\n", "END"});
  EXPECT_EQ(matcher.Append("one END two"), "one ");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "END");
  EXPECT_EQ(matcher.Append("more"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopStringMatcherTest, HoldsBackWhatMayBeTheStart) {
  StopStringMatcher matcher({"</s>"});
  EXPECT_EQ(matcher.Append("a<"), "a");
  EXPECT_EQ(matcher.Append("/"), "");
  EXPECT_EQ(matcher.Append("b<"), "</b");
  EXPECT_EQ(matcher.Append("/s"), "");
  EXPECT_EQ(matcher.Flush(), "</s");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopStringMatcherTest, StopsAcrossPieces) {
  StopStringMatcher matcher({"</s>"});
  EXPECT_EQ(matcher.Append("a<"), "a");
  EXPECT_EQ(matcher.Append("<"), "<");
  EXPECT_EQ(matcher.Append("/s"), "");
  EXPECT_EQ(matcher.Append(">tail"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "</s>");
}

TEST(StopStringMatcherTest, FirstToBeCompleteWins) {
  StopStringMatcher earlier({"abcd", "bc"});
  EXPECT_EQ(earlier.Append("xabcd"), "xa");
  EXPECT_EQ(earlier.matched(), "bc");
  // The longer of two that end at one place matches.
  StopStringMatcher longer({"c", "bc"});
  EXPECT_EQ(longer.Append("abc"), "a");
  EXPECT_EQ(longer.matched(), "bc");
}

// The state must fall back to the longest suffix: "aab" in "aaab".
TEST(StopStringMatcherTest, OverlappingBeginnings) {
  StopStringMatcher matcher({"aab"});
  EXPECT_EQ(matcher.Append("a"), "");
  EXPECT_EQ(matcher.Append("a"), "");
  EXPECT_EQ(matcher.Append("a"), "a");
  EXPECT_EQ(matcher.Append("b"), "");
  EXPECT_TRUE(matcher.stopped());
}

struct Expected {
  std::string text;
  std::string matched;
};

Expected BruteForce(const std::vector<std::string>& stops,
                    const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops) {
      if (!stop.empty() && stop.size() <= end &&
          text.compare(end - stop.size(), stop.size(), stop) == 0 &&
          stop.size() > best.size()) {
        best = stop;
      }
    }
    if (!best.empty()) return {text.substr(0, end - best.size()), best};
  }
  return {text, ""};
}

TEST(StopStringMatcherTest, CutsMakeNoDifference) {
  std::mt19937 random(5);
  const auto word = [&](size_t most) {
    std::string text;
    for (size_t i = random() % (most + 1); i > 0; --i) {
      text += "ab"[random() % 2];
    }
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = random() % 4; i > 0; --i) stops.push_back(word(5));
    const std::string text = word(16);
    const Expected expected = BruteForce(stops, text);
    StopStringMatcher matcher(stops);
    std::string out;
    for (size_t pos = 0; pos < text.size();) {
      const size_t size = 1 + random() % 3;
      out += matcher.Append(absl::string_view(text).substr(pos, size));
      pos += size;
    }
    out += matcher.Flush();
    ASSERT_EQ(out, expected.text) << text;
    ASSERT_EQ(matcher.matched(), expected.matched) << text;
    ASSERT_EQ(matcher.stopped(), !expected.matched.empty());
  }
}

}  // namespace
}  // namespace sluice
