#pragma once

#include <string>

#include "common/machine_profile.h"

namespace sluice {

// A profile for people: what the machine has and how fast it is, with units,
// and what is odd about it. Lines end in '\n'.
std::string ProfileTable(const MachineProfile& profile);

}  // namespace sluice
