#include "runtime/sample/distribution.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "runtime/sample/vector_ops.h"

namespace sluice {
namespace {

using vector_ops::kMaxBlock;
using vector_ops::kSumBlock;

constexpr float kInf = std::numeric_limits<float>::infinity();

// Calls visit(token) for each logit >= `min`, by token id.
template <typename Visit>
void ForEachAtLeast(std::span<const float> logits, float min,
                    const std::vector<float>& block_maxima, Visit visit) {
  for (size_t b = 0; b < block_maxima.size(); ++b) {
    if (block_maxima[b] < min) continue;
    const size_t end = std::min(logits.size(), (b + 1) * kMaxBlock);
    for (size_t i = b * kMaxBlock; i < end; ++i)
      if (logits[i] >= min) visit(static_cast<int32_t>(i));
  }
}

// The k-th largest logit, 1 <= k <= vocab.
float KthLargest(std::span<const float> logits, int32_t k,
                 SamplerScratch& scratch) {
  const auto nth = [&] {
    std::nth_element(scratch.selection.begin(),
                     scratch.selection.begin() + (k - 1),
                     scratch.selection.end(), std::greater<float>());
    return scratch.selection[k - 1];
  };
  // k blocks have maxima >= the k-th largest maximum, so at least k logits are.
  float min = -kInf;
  if (static_cast<size_t>(k) <= scratch.block_maxima.size()) {
    scratch.selection = scratch.block_maxima;
    min = nth();
  }
  scratch.selection.clear();
  ForEachAtLeast(logits, min, scratch.block_maxima, [&](int32_t token) {
    scratch.selection.push_back(logits[token]);
  });
  return nth();
}

// Sum of exp((logit - peak) / temperature); leaves the sums of kSumBlock logits
// each in scratch.block_sums.
double SumWeights(std::span<const float> logits, const Peak& peak,
                  float temperature, SamplerScratch& scratch) {
  float weights[kSumBlock];
  double sum = 0;
  scratch.block_sums.clear();
  for (size_t i = 0; i < logits.size(); i += kSumBlock) {
    const size_t n = std::min(kSumBlock, logits.size() - i);
    scratch.block_sums.push_back(vector_ops::ExpSum(
        logits.subspan(i, n), peak.logit, temperature, weights));
    sum += scratch.block_sums.back();
  }
  return sum;
}

// Returns the first weight's index at which the running sum exceeds `target`;
// the last positive one if rounding keeps the sum below it.
template <typename Weight>
size_t Invert(std::span<const Weight> weights, double target, double* before) {
  double sum = 0;
  size_t last = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] > 0)) continue;
    last = i;
    *before = sum;
    sum += weights[i];
    if (sum > target) break;
  }
  return last;
}

bool Truncates(const SamplingParams& params, size_t vocab) {
  return (params.top_k > 0 && static_cast<size_t>(params.top_k) < vocab) ||
         params.top_p < 1 || params.min_p > 0;
}

// No candidate of the final set has a lower logit.
float MinLogit(const SamplingParams& params, std::span<const float> logits,
               const Peak& peak, SamplerScratch& scratch) {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size())
    return std::max(kLowest, KthLargest(logits, params.top_k, scratch));
  double min_weight = std::clamp(params.min_p, 0.0f, 1.0f);
  if (params.top_p < 1) {
    // All tokens lighter than this together have at most 1 - top_p of the sum,
    // so that the others are enough.
    const double sum = SumWeights(logits, peak, params.temperature, scratch);
    const double tail =
        (1 - std::max<double>(params.top_p, 0)) * sum / logits.size();
    min_weight = min_weight > 0 ? std::min(min_weight, tail) : tail;
  }
  // The bound leaves room for rounding: tokens too light are dropped later.
  const double min = peak.logit +
                     params.temperature * (std::log(min_weight) - 1e-3) -
                     1e-6 * std::abs(peak.logit);
  return std::max(kLowest, static_cast<float>(min));
}

// Keeps the candidates for which keep(weight) holds.
template <typename Keep>
void KeepCandidates(SamplerScratch& scratch, Keep keep) {
  size_t kept = 0;
  for (size_t i = 0; i < scratch.tokens.size(); ++i) {
    if (!keep(scratch.weights[i])) continue;
    scratch.tokens[kept] = scratch.tokens[i];
    scratch.weights[kept] = scratch.weights[i];
    ++kept;
  }
  scratch.tokens.resize(kept);
  scratch.weights.resize(kept);
}

void KeepTopP(double top_p, double total, SamplerScratch& scratch) {
  const double wanted = top_p * total;
  std::vector<float>& w = scratch.selection;
  w = scratch.weights;
  // Invariant: the heaviest `low` weights stand first, add up to `sum` and are
  // not enough; the heaviest `high` are (or are all).
  size_t low = 0;
  size_t high = w.size();
  double sum = 0;
  while (high - low > 32) {
    const size_t middle = low + (high - low) / 2;
    std::nth_element(w.begin() + low, w.begin() + middle, w.begin() + high,
                     std::greater<float>());
    const double upper =
        std::accumulate(w.begin() + low, w.begin() + middle, 0.0);
    if (sum + upper >= wanted) {
      high = middle;
    } else {
      sum += upper;
      low = middle;
    }
  }
  std::sort(w.begin() + low, w.begin() + high, std::greater<float>());
  size_t count = low;
  do {
    sum += w[count++];
  } while (sum < wanted && count < high);

  const float lightest = w[count - 1];
  int64_t equal = std::count(w.begin(), w.begin() + count, lightest);
  KeepCandidates(scratch, [&](float weight) {
    return weight > lightest || (weight == lightest && equal-- > 0);
  });
}

// Leaves the tokens kept by truncation in scratch.tokens, by token id, with
// positive scratch.weights proportional to probabilities. Returns their sum.
double FilterCandidates(const SamplingParams& params,
                        std::span<const float> logits, const Peak& peak,
                        SamplerScratch& scratch) {
  const float min = MinLogit(params, logits, peak, scratch);
  scratch.tokens.clear();
  scratch.weights.clear();
  ForEachAtLeast(logits, min, scratch.block_maxima, [&](int32_t token) {
    scratch.tokens.push_back(token);
    scratch.weights.push_back(logits[token]);
  });
  double sum = 0;
  for (size_t i = 0; i < scratch.weights.size(); i += kSumBlock) {
    const size_t n = std::min(kSumBlock, scratch.weights.size() - i);
    float* weights = scratch.weights.data() + i;
    sum += vector_ops::ExpSum({weights, n}, peak.logit, params.temperature,
                              weights);
  }
  if (params.top_p < 1) {
    // The sum is over all that top-k kept. Without top-k the candidates lack a
    // tail, which counts, too.
    const bool top_k =
        params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size();
    const double total = top_k ? sum
                               : std::accumulate(scratch.block_sums.begin(),
                                                 scratch.block_sums.end(), 0.0);
    KeepTopP(params.top_p, total, scratch);
  }
  const float min_p = std::min(params.min_p, 1.0f);
  KeepCandidates(scratch, [&](float w) { return w > 0 && !(w < min_p); });
  return std::accumulate(scratch.weights.begin(), scratch.weights.end(), 0.0);
}

}  // namespace

Peak FindPeak(std::span<const float> logits, SamplerScratch& scratch) {
  std::vector<float>& maxima = scratch.block_maxima;
  maxima.resize((logits.size() + kMaxBlock - 1) / kMaxBlock);
  if (vector_ops::BlockMaxima(logits, maxima.data())) return {};
  const auto best = std::max_element(maxima.begin(), maxima.end());
  if (best == maxima.end() || !std::isfinite(*best)) return {};
  int32_t token = (best - maxima.begin()) * kMaxBlock;
  while (logits[token] != *best) ++token;
  return {token, *best};
}

double LogSumExp(std::span<const float> logits, const Peak& peak,
                 SamplerScratch& scratch) {
  return peak.logit + std::log(SumWeights(logits, peak, 1, scratch));
}

namespace {

// Fills the front of `top`; returns how many there are.
size_t FillTop(std::span<const float> logits, double log_sum_exp,
               std::span<TokenLogprob> top, SamplerScratch& scratch) {
  const size_t n = std::min(top.size(), logits.size());
  if (n == 0) return 0;
  const float min = std::max(std::numeric_limits<float>::lowest(),
                             KthLargest(logits, n, scratch));
  scratch.top.clear();
  // Logits are negated, so that pairs sort by likelihood, then token id.
  ForEachAtLeast(logits, min, scratch.block_maxima, [&](int32_t token) {
    scratch.top.emplace_back(-logits[token], token);
  });
  const size_t count = std::min(n, scratch.top.size());
  std::partial_sort(scratch.top.begin(), scratch.top.begin() + count,
                    scratch.top.end());
  for (size_t i = 0; i < count; ++i) {
    const auto& [negated, token] = scratch.top[i];
    top[i] = {token, static_cast<float>(-negated - log_sum_exp)};
  }
  return count;
}

}  // namespace

std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, int32_t n,
                                      double log_sum_exp,
                                      SamplerScratch& scratch) {
  std::vector<TokenLogprob> top(
      std::min<size_t>(std::max(n, 0), logits.size()));
  top.resize(FillTop(logits, log_sum_exp, top, scratch));
  return top;
}

float ScoreToken(std::span<const float> logits, int32_t token,
                 std::span<TokenLogprob> top, SamplerScratch& scratch) {
  size_t filled = 0;
  float logprob = std::numeric_limits<float>::quiet_NaN();
  const Peak peak = FindPeak(logits, scratch);
  if (peak.token >= 0) {
    const double log_sum_exp = LogSumExp(logits, peak, scratch);
    logprob = static_cast<float>(logits[token] - log_sum_exp);
    filled = FillTop(logits, log_sum_exp, top, scratch);
  }
  std::fill(top.begin() + filled, top.end(), TokenLogprob{-1, 0});
  return logprob;
}

int32_t SampleAt(const SamplingParams& params, std::span<const float> logits,
                 const Peak& peak, double uniform, SamplerScratch& scratch) {
  double before = 0;
  if (Truncates(params, logits.size())) {
    const double sum = FilterCandidates(params, logits, peak, scratch);
    return scratch
        .tokens[Invert<float>(scratch.weights, uniform * sum, &before)];
  }
  const double target =
      uniform * SumWeights(logits, peak, params.temperature, scratch);
  const size_t start =
      Invert<double>(scratch.block_sums, target, &before) * kSumBlock;
  float weights[kSumBlock];
  const size_t n = std::min(kSumBlock, logits.size() - start);
  vector_ops::ExpSum(logits.subspan(start, n), peak.logit, params.temperature,
                     weights);
  double unused = 0;
  return start + Invert<float>({weights, n}, target - before, &unused);
}

std::vector<TokenProbability> FilteredDistribution(
    const SamplingParams& params, std::span<const float> logits,
    SamplerScratch& scratch) {
  std::vector<TokenProbability> result;
  const Peak peak = FindPeak(logits, scratch);
  if (peak.token < 0) return result;
  const double sum = FilterCandidates(params, logits, peak, scratch);
  for (size_t i = 0; i < scratch.tokens.size(); ++i)
    result.push_back({scratch.tokens[i], scratch.weights[i] / sum});
  return result;
}

}  // namespace sluice
