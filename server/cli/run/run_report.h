#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "server/local_cluster.h"

namespace sluice {

struct Plan;
struct Policy;

// The runtime's part of `sluice run --json`: policy (asked and realised),
// bytes_moved, stall_seconds, compute_seconds, host_attention_seconds,
// wire_seconds, peak_memory_bytes (of the budgets, and resident: of the
// process), kv_cache_bytes and weight_image_bytes. `asked` is the policy and
// `stats` is the run's; seconds are summed over workers.
nlohmann::ordered_json RuntimeFigures(const Policy& asked,
                                      const RuntimeReport& report,
                                      const SweepStats& stats);

// A table for people: the seconds that each resource of the workers was busy
// and the bytes moved, with shares of `wall_seconds` times `workers` (FlexGen,
// table 4). Lines end in '\n'.
std::string RuntimeTable(const RuntimeReport& report, const SweepStats& stats,
                         double wall_seconds, int workers);

// A table of the plan's prediction and the measurement: throughput, and seconds
// of each resource, summed over the stages. Lines end in '\n'.
std::string PredictionTable(const Plan& plan, const SweepStats& stats,
                            double wall_seconds, double tokens_per_second);
nlohmann::ordered_json PredictionFigures(const Plan& plan,
                                         const SweepStats& stats);

}  // namespace sluice
