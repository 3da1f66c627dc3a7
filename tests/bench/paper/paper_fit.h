#pragma once

#include <vector>

#include "tests/bench/paper/paper_case.h"

namespace sluice {

// Those of a machine's constants that are free (FreeConstants) so that the sum
// of squared logarithms of predicted / published is least over the runs that
// WasFitted() names, with a little for straying from the prior values. Pattern
// search over logarithms: deterministic.
absl::StatusOr<FittedConstants> Fit(absl::string_view hardware,
                                    const std::vector<PublishedRun>& runs);

}  // namespace sluice
