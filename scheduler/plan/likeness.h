#pragma once

#include <vector>

#include "common/machine_profile.h"

namespace sluice {

// Measured machines never have quite the same figures. Those that differ by
// less than this factor count as alike when groups are compared; what is chosen
// is planned for with their own.
inline constexpr double kAlikeFactor = 1.1;

// The figures that make machines alike or not.
std::vector<double> FiguresOf(const MachineProfile& machine);
// Whether all figures differ by less than `factor`.
bool AreSimilar(const std::vector<double>& a, const std::vector<double>& b,
                double factor);

}  // namespace sluice
