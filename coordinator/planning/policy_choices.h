#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/model/decoder_spec.h"
#include "scheduler/plan/plan.h"

namespace sluice {

// What a user's --policy texts (see UpdatePolicy) leave to the planner: a value
// that they name is the only choice. Formats are never left to it, as they
// change answers: without a word, weights and KV stay as they are.
// kInvalidArgument: a text that UpdatePolicy refuses, or shares of tiers, which
// a plan decides.
absl::StatusOr<PolicyChoices> ChoicesLeftBy(
    const std::vector<std::string>& texts);

// Whether the texts name shares of tiers, which leaves nothing to plan.
bool NamesFractions(const std::vector<std::string>& texts);

// The value after "@" of the one text that is a file with a plan, read and
// parsed; nullopt if none is. kInvalidArgument: more than one, a file that is
// too large or a plan that ParsePlan refuses, with the file's name.
absl::StatusOr<std::optional<Plan>> PlanNamedBy(
    const std::vector<std::string>& texts);

// Sequences in a micro-batch when nobody says: 64 to 256. More make better use
// of each pass over the weights, but the last stage holds a row of float32
// logits for each, which are to stay within about 64 MiB.
int32_t DefaultGbs(const DecoderSpec& spec);

}  // namespace sluice
