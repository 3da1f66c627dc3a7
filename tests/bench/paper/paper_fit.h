#pragma once

#include <vector>

#include "tests/bench/paper/paper_case.h"

namespace sluice {

// Returns the constants of a machine with the free ones (FreeConstants) such
// that the sum of squared logarithms of predicted / published is least over the
// runs that WasFitted() names, with a little for straying from the prior
// values. The search is a pattern search over logarithms, and deterministic.
absl::StatusOr<FittedConstants> Fit(absl::string_view hardware,
                                    const std::vector<PublishedRun>& runs);

}  // namespace sluice
