#pragma once

#include "absl/status/statusor.h"
#include "common/policy.h"
#include "common/step_plan.h"
#include "sluice/v1/pipeline.pb.h"

// Between the plain structs that the rooms share and their wire form. From*
// check what arrives: counts that do not add up, negative positions or sizes,
// an unknown enum give kInvalidArgument naming the field.

namespace sluice {

void ToProto(const SamplingParams& params, v1::SamplingParams* out);
absl::StatusOr<SamplingParams> FromProto(const v1::SamplingParams& in);

void ToProto(const StepPlan& plan, v1::StepPlan* out);
absl::StatusOr<StepPlan> FromProto(const v1::StepPlan& in);

void ToProto(const StepResult& result, v1::StepResult* out);
StepResult FromProto(const v1::StepResult& in);

void ToProto(const Policy& policy, v1::Policy* out);
absl::StatusOr<Policy> FromProto(const v1::Policy& in);

}  // namespace sluice
