#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/pooling.h"
#include "common/step_plan.h"

namespace sluice {

// The pool of one sequence: takes the hidden states of its positions, which may
// come in several steps, and gives the vector that its pooling makes of them.
// Thread-compatible.
class Pool {
 public:
  // REQUIRES: `pooling` is not kNone.
  explicit Pool(Pooling pooling) : pooling_(pooling) {}

  // Whether the pool wants some of a segment's rows.
  bool Wants(const Segment& segment) const;
  // Sets the indices of those of a segment's rows that the pool wants.
  void WantedRows(const Segment& segment, std::vector<int32_t>* rows) const;
  // Adds the wanted rows of a segment, [wanted, hidden], after those of the
  // segments before.
  void Add(std::span<const float> rows, int64_t hidden);
  // Gives the vector of all rows so far. The pool is of no use afterwards.
  std::vector<float> Take();

 private:
  bool sums() const {
    return pooling_ == Pooling::kMean || pooling_ == Pooling::kMeanSqrtLen ||
           pooling_ == Pooling::kWeightedMean;
  }

  Pooling pooling_;
  std::vector<float> vector_;  // of poolings that take or compare
  std::vector<double> sum_;    // of those that sum
  int64_t rows_ = 0;
};

}  // namespace sluice
