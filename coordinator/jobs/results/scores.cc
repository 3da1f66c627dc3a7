#include "coordinator/jobs/results/scores.h"

#include <cmath>
#include <cstddef>
#include <limits>

#include "coordinator/jobs/results/embedding_format.h"

namespace sluice {
namespace {

// The log-probability of a token that is told at the answer's first position
// (kToldTokenBias); minus infinity for another.
double LogprobOf(const Generation& generation, int32_t token) {
  if (!generation.logprobs.empty()) {
    for (const TokenLogprob& told : generation.logprobs.front().top) {
      if (told.token == token) return told.logprob;
    }
  }
  return -std::numeric_limits<double>::infinity();
}

double Probability(const Generation& generation, const ScoreTokens& tokens) {
  const double yes = LogprobOf(generation, tokens.yes);
  const double no = LogprobOf(generation, tokens.no);
  // Infinitely unlikely ones can't be compared.
  if (std::isinf(yes) && std::isinf(no)) return 0.5;
  return 1 / (1 + std::exp(no - yes));
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += static_cast<double>(a[i]) * b[i];
  }
  return sum;
}

}  // namespace

std::vector<double> ScoresOf(const FinishedLine& line) {
  const ScoreParams& score = line.front().request.score;
  std::vector<double> scores;
  if (score.tokens.yes >= 0) {
    for (const FinishedRequest& pair : line) {
      scores.push_back(Probability(pair.generation, score.tokens));
    }
    return scores;
  }
  const auto embedding = [&](size_t part) {
    return EmbeddingOf(line[part].generation.pooled,
                       line[part].request.embedding);
  };
  const auto queries = static_cast<size_t>(score.queries);
  const std::vector<float> only = embedding(0);
  for (size_t i = 0; queries + i < line.size(); ++i) {
    scores.push_back(
        Dot(queries == 1 ? only : embedding(i), embedding(queries + i)));
  }
  return scores;
}

}  // namespace sluice
