#pragma once

#include "absl/status/statusor.h"
#include "server/local_models.h"

namespace sluice {

// Predicts what the best plan of usual requests does for a model that runs, on
// this machine with the defaults of `sluice run`. kNotFound if the machine was
// not measured before; the errors of MakePlan, and of a model that has changed
// meanwhile.
absl::StatusOr<ModelSpeed> PredictHere(const LocalModel& model);

}  // namespace sluice
