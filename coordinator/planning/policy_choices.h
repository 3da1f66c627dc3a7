#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/model/decoder_spec.h"
#include "scheduler/plan/plan.h"

namespace sluice {

// Returns the choices that a user's --policy texts (see UpdatePolicy) leave to
// the planner: a value that they name is the only choice. Formats, which change
// answers, are never left to it: by default, weights and KV are not quantized.
// kInvalidArgument: a text that UpdatePolicy refuses, or shares of tiers, which
// a plan decides.
absl::StatusOr<PolicyChoices> ChoicesLeftBy(
    const std::vector<std::string>& texts);

// Whether the texts name shares of tiers, which leaves nothing to plan.
bool NamesFractions(const std::vector<std::string>& texts);

// Reads and parses the one text that is "@" and a file with the plans of one or
// several pipelines; none if there is no such text. kInvalidArgument: more than
// one, a file that is too large or a plan that ParsePlans refuses, with the
// file's name.
absl::StatusOr<std::vector<Plan>> PlansNamedBy(
    const std::vector<std::string>& texts);

// The same for the plan of one pipeline; nullopt if there is no such text.
// kInvalidArgument, besides: several pipelines.
absl::StatusOr<std::optional<Plan>> PlanNamedBy(
    const std::vector<std::string>& texts);

// The default number of sequences in a micro-batch: 64 to 256. More make better
// use of each pass over the weights, but the last stage holds a row of float32
// logits for each, which are to stay within about 64 MiB.
int32_t DefaultGbs(const DecoderSpec& spec);

}  // namespace sluice
