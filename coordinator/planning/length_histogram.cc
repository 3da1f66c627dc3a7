#include "coordinator/planning/length_histogram.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

int ClassOf(int32_t length) {
  return length <= 0 ? -1 : static_cast<int>(std::floor(2 * std::log2(length)));
}

int32_t Average(int64_t sum, int64_t count, double share) {
  return std::max<int32_t>(
      1, static_cast<int32_t>(std::lround(share * static_cast<double>(sum) /
                                          static_cast<double>(count))));
}

}  // namespace

void LengthHistogram::Add(int32_t prompt, int32_t output, int64_t count,
                          int32_t shared) {
  Sums& sums = classes_[{ClassOf(prompt), ClassOf(output)}];
  sums.count += count;
  sums.prompt += count * prompt;
  sums.output += count * output;
  sums.shared += count * shared;
  requests_ += count;
}

void LengthHistogram::Add(const LengthHistogram& other, int64_t times) {
  for (const auto& [bounds, sums] : other.classes_) {
    Sums& mine = classes_[bounds];
    mine.count += times * sums.count;
    mine.prompt += times * sums.prompt;
    mine.output += times * sums.output;
    mine.shared += times * sums.shared;
  }
  requests_ += times * other.requests_;
}

Workload LengthHistogram::ToWorkload(double output_share) const {
  Workload workload;
  for (const auto& [bounds, sums] : classes_) {
    const int32_t prompt = Average(sums.prompt, sums.count, 1);
    workload.classes.push_back(
        {prompt, Average(sums.output, sums.count, output_share), sums.count,
         std::min(prompt - 1, static_cast<int32_t>(sums.shared / sums.count))});
  }
  return workload;
}

}  // namespace sluice
