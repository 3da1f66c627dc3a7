#pragma once

#include <string>
#include <vector>

#include "worker/all/machine_parts.h"

namespace sluice {

// Flags of --all itself, without a value, and with one. What --config has is in
// the environment of the parts.
inline constexpr const char* kAllSwitches[] = {"--all", "--dry-run"};
inline constexpr const char* kAllOptions[] = {"--per", "--config"};

// Returns the arguments, the program's name excluded, for the worker of one of
// `parts` parts: those of --all, but for what the part decides. `trace` is
// --trace's file, whose name gets the part's behind it; "": none.
std::vector<std::string> PartArguments(const std::vector<std::string>& all,
                                       const MachinePart& part, size_t parts,
                                       const std::string& trace);

}  // namespace sluice
