#include "server/cli/run/score_windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Returns windows as "ids before the first counted | counted ids".
std::vector<std::string> Cut(WindowOptions options, std::vector<int32_t> start,
                             std::vector<std::vector<int32_t>> documents) {
  EXPECT_TRUE(options.Validate(start.size()).ok());
  WindowCutter cutter(options, std::move(start), std::move(documents));
  std::vector<std::string> windows;
  ScoreWindow window;
  while (cutter.Next(&window)) {
    std::string text;
    for (size_t i = 0; i < window.ids.size(); ++i) {
      if (static_cast<int32_t>(i) == window.first_counted) text += "| ";
      text += std::to_string(window.ids[i]) + " ";
    }
    windows.push_back(text);
  }
  return windows;
}

TEST(WindowCutterTest, StartTokensInEachWindow) {
  const WindowOptions options{4, 4, WindowStart::kEach};
  EXPECT_THAT(Cut(options, {9}, {{1, 2, 3, 4, 5}}),
              ElementsAre("9 | 1 2 3 ", "9 | 4 5 "));
  EXPECT_THAT(Cut(options, {9}, {{1, 2, 3}, {4}, {5, 6, 7, 8}}),
              ElementsAre("9 | 1 2 3 ", "9 | 4 ", "9 | 5 6 7 ", "9 | 8 "));
  EXPECT_THAT(Cut(options, {8, 9}, {{1, 2, 3}}),
              ElementsAre("8 9 | 1 2 ", "8 9 | 3 "));
}

TEST(WindowCutterTest, StartTokensOnlyFirst) {
  const WindowOptions options{3, 3, WindowStart::kFirst};
  // Nothing predicts a later window's first token, as in Hugging Face's recipe,
  // and a window of one token counts nothing.
  EXPECT_THAT(Cut(options, {9}, {{1, 2, 3, 4, 5}, {1, 2, 3}}),
              ElementsAre("9 | 1 2 ", "3 | 4 5 ", "9 | 1 2 "));
  EXPECT_THAT(Cut({3, 3, WindowStart::kNone}, {9}, {{1, 2, 3, 4, 5}}),
              ElementsAre("1 | 2 3 ", "4 | 5 "));
  // The tokenizer puts nothing before a text.
  EXPECT_THAT(Cut({3, 3, WindowStart::kEach}, {}, {{1, 2, 3, 4, 5}}),
              ElementsAre("1 | 2 3 ", "4 | 5 "));
}

TEST(WindowCutterTest, OverlappingWindowsCountWhatIsNew) {
  EXPECT_THAT(Cut({4, 2, WindowStart::kNone}, {9}, {{1, 2, 3, 4, 5, 6, 7}}),
              ElementsAre("1 | 2 3 4 ", "3 4 | 5 6 ", "5 6 | 7 "));
  EXPECT_THAT(Cut({4, 2, WindowStart::kEach}, {9}, {{1, 2, 3, 4, 5, 6}}),
              ElementsAre("9 | 1 2 3 ", "9 3 | 4 5 ", "9 5 | 6 "));
  EXPECT_THAT(Cut({3, 1, WindowStart::kFirst}, {9}, {{1, 2, 3, 4}}),
              ElementsAre("9 | 1 2 ", "1 2 | 3 ", "2 3 | 4 "));
}

TEST(WindowCutterTest, TooShortATextCountsNothing) {
  const auto counted = [](WindowStart start, std::vector<int32_t> tokens) {
    return WindowCutter({4, 4, start}, {9}, {std::move(tokens)})
        .CountedTokens(0);
  };
  EXPECT_EQ(counted(WindowStart::kNone, {}), 0);
  EXPECT_EQ(counted(WindowStart::kNone, {1}), 0);
  EXPECT_EQ(counted(WindowStart::kFirst, {}), 0);
  EXPECT_EQ(counted(WindowStart::kFirst, {1}), 1);
  EXPECT_EQ(counted(WindowStart::kEach, {}), 0);
  EXPECT_EQ(counted(WindowStart::kEach, {1}), 1);
  EXPECT_THAT(Cut({4, 4, WindowStart::kEach}, {9}, {{}}), ElementsAre());
}

// For all sizes, every token counts at most once, with as many before it as
// promised, and as many count as CountedTokens returns.
TEST(WindowCutterTest, EachTokenCountsOnce) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    WindowOptions options;
    options.context = 2 + static_cast<int32_t>(random() % 9);
    options.stride = 1 + static_cast<int32_t>(random() % options.context);
    options.start = static_cast<WindowStart>(random() % 3);
    std::vector<int32_t> start;
    if (random() % 4 != 0) start = {-1};
    std::vector<std::vector<int32_t>> documents(1 + random() % 3);
    int32_t next = 0;
    for (auto& tokens : documents) {
      for (size_t n = random() % 40; n > 0; --n) tokens.push_back(next++);
    }
    WindowCutter cutter(options, start, documents);
    EXPECT_EQ(cutter.num_tokens(), next);
    int64_t expected = 0;
    for (size_t d = 0; d < documents.size(); ++d) {
      expected += cutter.CountedTokens(d);
    }
    std::map<int32_t, int32_t> context_of;
    ScoreWindow window;
    while (cutter.Next(&window)) {
      ASSERT_LE(window.ids.size(), static_cast<size_t>(options.context));
      ASSERT_GE(window.first_counted, 1);
      ASSERT_LT(window.first_counted, static_cast<int32_t>(window.ids.size()));
      for (size_t i = window.first_counted; i < window.ids.size(); ++i) {
        ASSERT_TRUE(
            context_of.emplace(window.ids[i], static_cast<int32_t>(i)).second);
        ASSERT_GE(window.ids[i], 0);
      }
    }
    ASSERT_EQ(static_cast<int64_t>(context_of.size()), expected) << round;
    for (const auto& tokens : documents) {
      for (size_t i = 0; i < tokens.size(); ++i) {
        const auto it = context_of.find(tokens[i]);
        if (it == context_of.end()) continue;
        ASSERT_GE(it->second,
                  std::min<int32_t>(static_cast<int32_t>(i),
                                    options.context - options.stride))
            << round;
      }
    }
  }
}

TEST(WindowOptionsTest, RefusesWhatCannotBe) {
  const auto refused = [](int32_t context, int32_t stride, size_t start,
                          const std::string& named) {
    const absl::Status status =
        WindowOptions{context, stride, WindowStart::kEach}.Validate(start);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(named));
  };
  refused(1, 1, 0, "--context 1");
  refused(-3, 1, 0, "--context -3");
  refused(8, 0, 0, "--stride 0");
  refused(8, -1, 0, "--stride -1");
  refused(8, 9, 0, "--stride 9 is not within 1..8");
  refused(2, 2, 2, "no room");
  EXPECT_TRUE((WindowOptions{2, 1, WindowStart::kEach}.Validate(1)).ok());
  EXPECT_TRUE((WindowOptions{2, 1, WindowStart::kFirst}.Validate(2)).ok());
}

TEST(ScoreSumTest, PerplexityAndItsError) {
  ScoreSum sum;
  EXPECT_TRUE(std::isnan(sum.perplexity()));
  for (const double logprob : {-1.0, -2.0, -3.0, -6.0}) sum.Add(logprob);
  EXPECT_EQ(sum.tokens(), 4);
  EXPECT_EQ(sum.nll(), 12);
  EXPECT_DOUBLE_EQ(sum.perplexity(), std::exp(3.0));
  // Sample variance 14 / 3, of the mean 14 / 12.
  EXPECT_NEAR(sum.perplexity_error(), std::exp(3.0) * std::sqrt(14.0 / 12),
              1e-9);
}

TEST(ScoreLinesTest, RequestsAndResults) {
  EXPECT_EQ(ScoreRequestLine({{5, 6, 7}, 1}),
            "{\"prompt\":[5,6,7],\"max_tokens\":0,\"echo\":true,"
            "\"logprobs\":0}\n");
  const std::string answer =
      R"({"error":null,"response":{"body":{"choices":[{"logprobs":)"
      R"({"token_logprobs":[null,-1.5,-2.0]}}]}}})";
  ScoreSum sum;
  ASSERT_TRUE(AddScores(answer, 3, 1, &sum).ok());
  EXPECT_EQ(sum.tokens(), 2);
  EXPECT_EQ(sum.nll(), 3.5);
  ASSERT_TRUE(AddScores(answer, 3, 2, &sum).ok());
  EXPECT_EQ(sum.nll(), 5.5);
  const auto refused = [](const std::string& line, const std::string& named) {
    ScoreSum none;
    const absl::Status status = AddScores(line, 3, 1, &none);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << line;
    EXPECT_THAT(std::string(status.message()), HasSubstr(named));
  };
  refused(R"({"error":{"message":"line 3: out of memory"},"response":null})",
          "line 3: out of memory");
  refused(R"({"error":null,"response":{"body":{"choices":[{"logprobs":)"
          R"({"token_logprobs":[null,-1.5]}}]}}})",
          "2 log-probabilities for a window of 3");
  refused(R"({"error":null,"response":{"body":{"choices":[{"logprobs":)"
          R"({"token_logprobs":[null,null,-1]}}]}}})",
          "no scored prompt");
  for (const char* line : {"", "{", "[]", "{}", R"({"error":null})",
                           R"({"error":7})", R"({"error":{"message":3}})"}) {
    refused(line, "");
  }
}

}  // namespace
}  // namespace sluice
