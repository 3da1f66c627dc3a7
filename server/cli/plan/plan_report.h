#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "scheduler/plan/plan.h"

namespace sluice {

// A plan for people: a row a stage, what is expected, a bar for each resource
// of each stage with the binding one named, what each tier holds, and what else
// was considered. Lines end in '\n'.
std::string PlanTable(const Plan& plan,
                      const std::vector<Alternative>& rejected);

// "latency of a block, tokens/s, policy": a row a plan.
std::string FrontierTable(const std::vector<Plan>& plans);
nlohmann::ordered_json FrontierJson(const std::vector<Plan>& plans);

}  // namespace sluice
