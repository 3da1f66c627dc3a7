#pragma once

#include <vector>

namespace sluice {

// The layouts of histograms: upper bounds, ascending. Each kind of time or size
// has one, so that different histograms can be compared and added.

// Buckets for steps of the pipeline or one stage: from a small model on a GPU
// to layers that are read from a disk.
inline std::vector<double> StepSecondsBuckets() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,  1,
          2.5,   5,      10,    30,   60,    120,  300, 600,  1800, 3600};
}

// Buckets for requests, which may wait behind long jobs: up to a week.
inline std::vector<double> RequestSecondsBuckets() {
  return {0.1, 0.3,  1,    2.5,  5,     10,    30,    60,     120,    300,
          600, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 259200, 604800};
}

// Buckets for the tokens of a prompt or an answer.
inline std::vector<double> TokenBuckets() {
  return {1,    2,    5,    10,    20,    50,    100,    200,    500,
          1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000};
}

// Buckets for the time to make a write durable.
inline std::vector<double> DurableWriteSecondsBuckets() {
  return {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
          0.1,    0.2,    0.5,    1,     2,     5,     10,   30,   60};
}

}  // namespace sluice
