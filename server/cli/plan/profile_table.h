#pragma once

#include <string>

#include "common/machine_profile.h"

namespace sluice {

// A table of a profile for people: the machine's capacities and rates, with
// units, and the remarks. Lines end in '\n'.
std::string ProfileTable(const MachineProfile& profile);

}  // namespace sluice
