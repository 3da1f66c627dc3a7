#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/step_plan.h"
#include "proto/wire_limits.h"
#include "sluice/v1/pipeline.pb.h"

// Converts between the rooms' shared structs and their messages. From* check
// what arrives: counts that do not add up, negative positions or sizes, or an
// unknown enum give kInvalidArgument naming the field.

namespace sluice {

struct Policy;

void ToProto(const SamplingParams& params, v1::SamplingParams* out);
absl::StatusOr<SamplingParams> FromProto(const v1::SamplingParams& in);

void ToProto(const StepPlan& plan, v1::StepPlan* out);
absl::StatusOr<StepPlan> FromProto(const v1::StepPlan& in);

void ToProto(const StepResult& result, v1::StepResult* out);
absl::StatusOr<StepResult> FromProto(const v1::StepResult& in);

// Splits a result into messages of bounded size: first all scores, then all
// pooled vectors, then all tokens. `max_values` bounds the numbers (of at most
// 10 bytes) in a part; a part has at least one scored or sampled token, or
// pooled vector.
std::vector<v1::StepResult> ToProtoParts(const StepResult& result,
                                         int64_t max_values = kMaxResultValues);

void ToProto(const Policy& policy, v1::Policy* out);
absl::StatusOr<Policy> FromProto(const v1::Policy& in);

}  // namespace sluice
