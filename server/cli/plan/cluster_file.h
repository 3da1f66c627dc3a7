#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"

namespace sluice {

// Adds `workers` that share a machine's memory and disk space evenly, and its
// cores and disk as they need them.
void AddWorkers(const MachineProfile& machine, int32_t workers,
                std::vector<MachineProfile>* machines);

// Adds the parts of a machine, each of which is as the profile says, with cores
// of its own: GPUs or NUMA nodes, which may compute stages together if the
// profile has an exchange.
void AddParts(const MachineProfile& part, int32_t parts,
              std::vector<MachineProfile>* machines);

// Reads a file of machines for `sluice plan --cluster`:
//
//   {"machines": [{"profile": "a.json", "count": 8, "workers": 1},
//                 {"profile": "b.json", "parts": 4}, ...]}
//
// Profiles' names are relative to the file's directory; count, workers and
// parts are 1 if left out, and only one of the last two may be more. kNotFound,
// or kInvalidArgument with the file and the entry.
absl::StatusOr<std::vector<MachineProfile>> ReadClusterFile(
    const std::string& path);

}  // namespace sluice
