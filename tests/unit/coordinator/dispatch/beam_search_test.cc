#include "coordinator/dispatch/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace sluice {
namespace {

constexpr int32_t kVocab = 40;
using Tokens = std::vector<int32_t>;

// The log-probabilities of all tokens behind these, by chance.
std::vector<float> LogprobsBehind(const Tokens& tokens, uint32_t seed) {
  std::seed_seq mix(tokens.begin(), tokens.end());
  std::vector<uint32_t> words(1);
  mix.generate(words.begin(), words.end());
  std::mt19937 random(words[0] ^ seed);
  std::vector<float> logits(kVocab);
  for (float& logit : logits) {
    logit = static_cast<float>(random() % 100'000) / 20'000;
  }
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit);
  for (float& logit : logits) logit -= static_cast<float>(std::log(sum));
  return logits;
}

std::vector<BeamSearch::Answer> Search(const BeamSearch::Options& options,
                                       uint32_t seed) {
  BeamSearch search(options);
  while (!search.beams().empty()) {
    std::vector<std::vector<TokenLogprob>> likeliest;
    for (const BeamSearch::Beam& beam : search.beams()) {
      const std::vector<float> logprobs = LogprobsBehind(beam.tokens, seed);
      std::vector<TokenLogprob>& top = likeliest.emplace_back();
      for (int32_t t = 0; t < kVocab; ++t) top.push_back({t, logprobs[t]});
      std::stable_sort(
          top.begin(), top.end(),
          [](const auto& a, const auto& b) { return a.logprob > b.logprob; });
      top.resize(static_cast<size_t>(search.candidates()));
    }
    search.Advance(likeliest);
  }
  return search.TakeAnswers();
}

// The search as transformers carries it out on tensors: all continuations of
// all beams, and a great number taken from the scores of what may not be.
std::vector<BeamSearch::Answer> SearchOnTensors(
    const BeamSearch::Options& options, uint32_t seed) {
  constexpr float kNone = -1e9F;
  struct Row {
    Tokens tokens;
    float score = kNone;
    bool finished = false;
  };
  const auto best = [](std::vector<Row> rows, size_t count) {
    std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
      return a.score > b.score;
    });
    rows.resize(count);
    return rows;
  };
  const auto width = static_cast<size_t>(options.width);
  const size_t kept = std::max<size_t>(2, 1 + options.ends.size()) * width;
  const auto& [penalty, stopping] = options.params;
  std::vector<Row> running(width), done(width);
  running[0].score = 0;
  bool improves = true;
  for (int32_t length = 1; improves; ++length) {
    std::vector<Row> all;
    for (const Row& row : running) {
      const std::vector<float> logprobs = LogprobsBehind(row.tokens, seed);
      for (int32_t t = 0; t < kVocab; ++t) {
        all.push_back({row.tokens, row.score + logprobs[t]});
        all.back().tokens.push_back(t);
      }
    }
    all = best(all, kept);
    std::vector<Row> next = all, ended = all;
    bool all_hit = true;
    for (size_t i = 0; i < kept; ++i) {
      const bool hits = options.ends.contains(all[i].tokens.back()) ||
                        length >= options.max_tokens;
      all_hit = all_hit && hits;
      if (hits) next[i].score += kNone;
      ended[i].finished = hits && i < width;
      ended[i].score /=
          static_cast<float>(std::pow(static_cast<double>(length), penalty));
      if (!ended[i].finished) ended[i].score += kNone;
    }
    running = best(next, width);
    done.insert(done.end(), ended.begin(), ended.end());
    done = best(done, width);
    const int32_t longest = stopping == EarlyStopping::kNever && penalty > 0
                                ? options.max_tokens
                                : length;
    const float possible =
        running[0].score /
        static_cast<float>(std::pow(static_cast<double>(longest), penalty));
    const bool full = std::all_of(done.begin(), done.end(),
                                  [](const Row& row) { return row.finished; });
    improves = (!full || possible > done.back().score) && !all_hit &&
               !(full && stopping == EarlyStopping::kYes);
  }
  std::vector<BeamSearch::Answer> answers;
  for (Row& row : done) {
    if (!row.finished) continue;
    const bool by_token = options.ends.contains(row.tokens.back());
    if (by_token) row.tokens.pop_back();
    answers.push_back({row.tokens, by_token, row.score});
  }
  return answers;
}

TEST(BeamSearchTest, AnswersAreThoseOfTransformers) {
  std::mt19937 random(3);
  int ended = 0, cut = 0;
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    BeamSearch::Options options;
    options.width = 2 + static_cast<int32_t>(random() % 5);
    options.max_tokens = 1 + static_cast<int32_t>(random() % 14);
    options.params.early_stopping = static_cast<EarlyStopping>(random() % 3);
    options.params.length_penalty =
        std::vector<double>{1, 0, 2, -1, 0.6, 5}[random() % 6];
    for (uint32_t n = random() % 6; n > 0; --n) {
      options.ends.insert(static_cast<int32_t>(random() % kVocab));
    }
    const auto found = Search(options, seed);
    const auto expected = SearchOnTensors(options, seed);
    ASSERT_EQ(found.size(), expected.size()) << seed;
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i].tokens, expected[i].tokens) << seed << " " << i;
      ASSERT_EQ(found[i].ended, expected[i].ended) << seed << " " << i;
      ASSERT_EQ(found[i].score, expected[i].score) << seed << " " << i;
      ++(found[i].ended ? ended : cut);
    }
  }
  EXPECT_GT(ended, 500);
  EXPECT_GT(cut, 500);
}

TEST(BeamSearchTest, FewTokensMakeFewBeams) {
  BeamSearch search({.width = 4, .max_tokens = 2});
  search.Advance(std::vector<std::vector<TokenLogprob>>{{{7, -1}, {8, -2}}});
  ASSERT_EQ(search.beams().size(), 2u);
  search.Advance(
      std::vector<std::vector<TokenLogprob>>{{{1, -1}}, {{2, -1}, {3, -3}}});
  EXPECT_TRUE(search.beams().empty());
  const auto answers = search.TakeAnswers();
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].tokens, (Tokens{7, 1}));
  EXPECT_EQ(answers[2].tokens, (Tokens{8, 3}));
  EXPECT_EQ(answers[2].score, -2.5F);
}

}  // namespace
}  // namespace sluice
