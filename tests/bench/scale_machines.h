#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/machine_profile.h"

// Machines of which only data sheets are at hand, for tables on paper.

namespace sluice {

// A machine as one rents it: a device, or none, and its share of the host.
struct SheetMachine {
  std::string name;
  double dollars_per_hour = 0;  // an assumption: about what it is rented for
  std::string price_source;
  MachineProfile profile;  // without links
};

// T4, 3090, H100 and a CPU's.
std::vector<SheetMachine> SheetMachines();

// One link to any other machine. REQUIRES: gbit > 0.
LinkProfile SheetLink(double gbit, double latency_seconds);

}  // namespace sluice
