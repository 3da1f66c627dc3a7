#include "runtime/exec/pool.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sluice {

bool Pool::Wants(const Segment& segment) const {
  if (pooling_ == Pooling::kLastToken) return segment.sample;
  return pooling_ != Pooling::kFirstToken || segment.start == 0;
}

void Pool::WantedRows(const Segment& segment,
                      std::vector<int32_t>* rows) const {
  rows->clear();
  if (!Wants(segment)) return;
  if (pooling_ == Pooling::kLastToken) {
    rows->push_back(segment.num_tokens - 1);
  } else if (pooling_ == Pooling::kFirstToken) {
    rows->push_back(0);
  } else {
    for (int32_t i = 0; i < segment.num_tokens; ++i) rows->push_back(i);
  }
}

void Pool::Add(std::span<const float> rows, int64_t hidden) {
  for (size_t at = 0; at < rows.size(); at += hidden, ++rows_) {
    const std::span<const float> row = rows.subspan(at, hidden);
    if (!sums()) {
      if (vector_.empty()) {
        vector_.assign(row.begin(), row.end());
        continue;
      }
      // A NaN stays one: it is told as an error.
      for (int64_t i = 0; i < hidden; ++i) {
        if (!(row[i] <= vector_[i]) && !std::isnan(vector_[i])) {
          vector_[i] = row[i];
        }
      }
      continue;
    }
    sum_.resize(hidden);
    const double weight = pooling_ == Pooling::kWeightedMean
                              ? static_cast<double>(rows_ + 1)
                              : 1.0;
    for (int64_t i = 0; i < hidden; ++i) sum_[i] += weight * row[i];
  }
}

std::vector<float> Pool::Take() {
  if (!sums()) return std::move(vector_);
  const auto n = static_cast<double>(rows_);
  const double divisor = pooling_ == Pooling::kMean          ? n
                         : pooling_ == Pooling::kMeanSqrtLen ? std::sqrt(n)
                                                             : n * (n + 1) / 2;
  std::vector<float> values(sum_.size());
  std::transform(sum_.begin(), sum_.end(), values.begin(),
                 [&](double sum) { return static_cast<float>(sum / divisor); });
  return values;
}

}  // namespace sluice
