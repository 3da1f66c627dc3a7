#pragma once

#include <string>

#include "sluice/v1/cluster.pb.h"

namespace sluice {

// The name of a worker's state, such as "ready" or "left_out".
std::string WorkerStateName(v1::WorkerState state);

// One line of JSON, for --json.
std::string ClusterToJson(const v1::ClusterState& state);
// Lines for people, of at most 80 columns, on any terminal.
std::string ClusterToText(const v1::ClusterState& state);

}  // namespace sluice
