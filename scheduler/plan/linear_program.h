#pragma once

#include <limits>
#include <vector>

#include "absl/status/statusor.h"

// Small linear programs. GLPK, which solves them, stays behind this header.

namespace sluice {

// Minimise cost . x where lo <= x <= hi and row.lo <= row.a . x <= row.hi.
struct LinearProgram {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  struct Row {
    std::vector<double> a;  // one a variable; those left out are 0
    double lo = -kInfinity;
    double hi = kInfinity;
  };
  std::vector<double> cost;  // one a variable
  std::vector<double> lo;
  std::vector<double> hi;
  std::vector<Row> rows;

  int num_variables() const { return static_cast<int>(cost.size()); }
  // Adds a variable and returns its index.
  int AddVariable(double cost_of_it, double min, double max);
  // Adds a row with a coefficient of 0 for each variable that there is.
  Row& AddRow(double min, double max);
};

struct LinearSolution {
  enum class Status { kOptimal, kInfeasible, kUnbounded };
  Status status = Status::kInfeasible;
  // These are set if kOptimal.
  double objective = 0;
  std::vector<double> x;
};

// Deterministic. Nothing is printed, and nothing aborts: what GLPK reports as
// an error comes back as a status.
//
// kInvalidArgument: a coefficient that is not finite, a bound that is NaN or
// infinite on the wrong side, vectors of unlike lengths. kInternal: GLPK found
// no answer, or one that violates the constraints by more than 1e-6 of their
// terms.
//
// GLPK keeps its state in a variable of each thread if it was built so, as
// Debian's is; then threads may solve at the same time.
// Each call begins and ends with fresh state.
absl::StatusOr<LinearSolution> Solve(const LinearProgram& program);

}  // namespace sluice
