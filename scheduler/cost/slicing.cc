#include "scheduler/cost/slicing.h"

#include <algorithm>
#include <limits>

namespace sluice {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLeeway = 1e-3;

// What slices take, and the best cuts for a maximum: algorithm 1.
class Cuts {
 public:
  Cuts(int units, int32_t unit,
       absl::FunctionRef<double(int32_t, int32_t)> seconds)
      : units_(units), seconds_(units + 1), sums_(units + 1), last_(units + 1) {
    for (int length = 1; length <= units; ++length) {
      for (int context = 0; context + length <= units; ++context) {
        seconds_[length].push_back(seconds(length * unit, context * unit));
      }
    }
  }

  // All that a maximum may be, ascending.
  std::vector<double> Maxima() const {
    std::vector<double> maxima;
    for (const std::vector<double>& of_length : seconds_) {
      maxima.insert(maxima.end(), of_length.begin(), of_length.end());
    }
    std::sort(maxima.begin(), maxima.end());
    maxima.erase(std::unique(maxima.begin(), maxima.end()), maxima.end());
    return maxima;
  }

  void Solve(double max) {
    sums_[0] = 0;
    for (int end = 1; end <= units_; ++end) {
      sums_[end] = kInfinity;
      for (int length = 1; length <= end; ++length) {
        const double t = seconds_[length][end - length];
        const double sum = sums_[end - length] + t;
        if (t > max || sum >= sums_[end]) continue;
        sums_[end] = sum;
        last_[end] = length;
      }
    }
  }

  // Of a prompt of so many units, by the last Solve().
  double Sum(int units) const { return sums_[units]; }
  std::vector<int> Lengths() const {
    std::vector<int> lengths;
    for (int end = units_; end > 0; end -= last_[end]) {
      lengths.push_back(last_[end]);
    }
    std::reverse(lengths.begin(), lengths.end());
    return lengths;
  }
  double Max() const {
    double max = 0;
    for (int end = units_; end > 0; end -= last_[end]) {
      max = std::max(max, seconds_[last_[end]][end - last_[end]]);
    }
    return max;
  }

 private:
  const int units_;
  std::vector<std::vector<double>> seconds_;  // by length and context
  std::vector<double> sums_;                  // S* of each prefix
  std::vector<int> last_;                     // slice of each prefix
};

}  // namespace

Slicing BestSlicing(
    absl::Span<const SlicedPrompts> prompts, int32_t unit, int num_stages,
    absl::FunctionRef<double(int32_t length, int32_t context)> seconds) {
  const auto units_of = [unit](int32_t tokens) {
    return static_cast<int>((int64_t{tokens} + unit - 1) / unit);
  };
  int longest = 0;
  for (const SlicedPrompts& p : prompts) {
    longest = std::max(longest, units_of(p.tokens));
  }
  Cuts cuts(longest, unit, seconds);
  const auto sum = [&] {
    double total = 0;
    for (const SlicedPrompts& p : prompts) {
      total += p.count * cuts.Sum(units_of(p.tokens));
    }
    return total;
  };
  cuts.Solve(kInfinity);
  const double least = sum();
  const double others = num_stages - 1;
  Slicing best = {.seconds = kInfinity};
  double best_max = kInfinity;
  const double epsilon = kLeeway * least / others;
  const std::vector<double> maxima = cuts.Maxima();
  for (size_t i = 0; i < maxima.size(); ++i) {
    if (least + others * maxima[i] >= best.seconds) break;
    // The greatest of those that make no difference.
    const double start = maxima[i];
    while (i + 1 < maxima.size() && maxima[i + 1] <= start + epsilon) ++i;
    cuts.Solve(maxima[i]);
    const double total = sum() + others * maxima[i];
    if (total >= best.seconds) continue;
    best.seconds = total;
    best_max = maxima[i];
  }
  cuts.Solve(best_max);
  for (const int length : cuts.Lengths()) {
    best.lengths.push_back(length * unit);
  }
  best.max_seconds = cuts.Max();
  return best;
}

}  // namespace sluice
