#include "coordinator/dispatch/beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice {
namespace {

// A beam and a token behind it.
struct Continuation {
  size_t beam;
  int32_t token;
  float score;
};

float Ranked(float score, int64_t length, double penalty) {
  using Limits = std::numeric_limits<float>;
  const double by =
      std::clamp<double>(std::pow(static_cast<double>(length), penalty),
                         Limits::min(), Limits::max());
  return score / static_cast<float>(by);
}

}  // namespace

BeamSearch::BeamSearch(Options options) : options_(std::move(options)) {}

void BeamSearch::Advance(std::span<const std::vector<TokenLogprob>> likeliest) {
  std::vector<Continuation> all;
  for (size_t b = 0; b < beams_.size(); ++b) {
    for (const TokenLogprob& next : likeliest[b]) {
      all.push_back({b, next.token, beams_[b].score + next.logprob});
    }
  }
  const auto better = [](const auto& a, const auto& b) {
    return a.score > b.score;
  };
  std::stable_sort(all.begin(), all.end(), better);
  const std::vector<Beam> before = std::exchange(beams_, {});
  const int64_t length = std::ssize(before.front().tokens) + 1;
  const auto width = static_cast<size_t>(options_.width);
  for (size_t i = 0; i < all.size() && beams_.size() < width; ++i) {
    const auto [beam, token, score] = all[i];
    const bool ended = options_.ends.contains(token);
    std::vector<int32_t> tokens = before[beam].tokens;
    if (!ended) tokens.push_back(token);
    if (!ended && length < options_.max_tokens) {
      beams_.push_back({std::move(tokens), score});
    } else if (i < width) {
      // Others are too unlikely to be answers.
      answers_.push_back(
          {std::move(tokens), ended,
           Ranked(score, length, options_.params.length_penalty)});
    }
  }
  std::stable_sort(answers_.begin(), answers_.end(), better);
  if (answers_.size() > width) answers_.resize(width);
  if (!CanImprove()) beams_.clear();
}

bool BeamSearch::CanImprove() const {
  if (beams_.empty()) return false;
  if (std::ssize(answers_) < options_.width) return true;
  const auto& [penalty, stopping] = options_.params;
  if (stopping == EarlyStopping::kYes) return false;
  const int64_t length = stopping == EarlyStopping::kNever && penalty > 0
                             ? options_.max_tokens
                             : std::ssize(beams_.front().tokens);
  return Ranked(beams_.front().score, length, penalty) > answers_.back().score;
}

}  // namespace sluice
