#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/limits.h"
#include "common/machine_profile.h"
#include "coordinator/planning/plan_monitor.h"
#include "sluice/v1/pipeline.pb.h"

// Reads workers' registrations for planning.

namespace sluice {

// Returns a worker's profile, with its name and present budget; nullopt if it
// has none or an invalid one.
std::optional<MachineProfile> ProfileOf(const v1::Register& info);

// Whether so many bytes of weights can stay where the worker computes, with a
// quarter of that memory for all else. False if that is not known.
bool HoldsWeights(const v1::Register& info,
                  const std::optional<MachineProfile>& profile, double bytes);

// Whether a failure says nothing about the worker itself: a neighbour is gone,
// or the assignment is outdated.
bool IsTransient(absl::StatusCode code);

// Cuts and escapes a worker's text for messages to clients.
std::string ClipText(const std::string& text,
                     size_t max_bytes = kMaxFailureBytes);

// The rates of `now` that differ from those of `before`, for people: "disk
// reads 2 GB/s, not 3".
std::string RateDifferences(const MachineProfile& before,
                            const MachineProfile& now);

ResourceTotals TotalsOf(const v1::RuntimeTotals& runtime);

}  // namespace sluice
