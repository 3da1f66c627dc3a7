#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "scheduler/steps/workload.h"

namespace sluice {

// Counts requests by length, in a bounded number of classes whose bounds grow
// by the square root of two: some hundred classes at most, however many
// requests. Tokens are kept exactly, in sum. Thread-compatible.
class LengthHistogram {
 public:
  // Of each prompt, other requests compute `shared` tokens.
  // REQUIRES: prompt >= 1, output >= 0, 0 <= shared < prompt.
  void Add(int32_t prompt, int32_t output, int64_t count = 1,
           int32_t shared = 0);

  // Adds all of `other`, `times` times.
  void Add(const LengthHistogram& other, int64_t times);

  int64_t requests() const { return requests_; }
  // Returns each class with its average lengths, at least 1; outputs are scaled
  // by `output_share`, the share of max_tokens that is generated.
  Workload ToWorkload(double output_share = 1) const;

 private:
  struct Sums {
    int64_t count = 0;
    int64_t prompt = 0;
    int64_t output = 0;
    int64_t shared = 0;
  };
  int64_t requests_ = 0;
  std::map<std::pair<int, int>, Sums> classes_;
};

}  // namespace sluice
