#include "server/cli/plan/models_speed.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/status_macros.h"
#include "runtime/model/model_dir.h"
#include "scheduler/plan/plan.h"
#include "server/local_profile.h"

namespace sluice {
namespace {

constexpr LengthClass kUsualRequests = {
    .prompt = 512, .output = 128, .count = 256};

}  // namespace

absl::StatusOr<ModelSpeed> PredictHere(const LocalModel& model) {
  LocalProfileOptions options;
  options.fresh = false;
  options.measure = false;
  SLUICE_ASSIGN_OR_RETURN(MachineProfile profile,
                          LocalProfile(options, [](auto, double) {}));
  SLUICE_ASSIGN_OR_RETURN(profile, profile.WithRanks(0));
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelDir> opened,
                          ModelDir::Open(model.dir));
  PlanRequest request;
  request.model = opened->spec();
  request.dtype = ResolveDType(DTypeChoice::kAuto, request.model);
  if (request.model.headless) return NotFound("it generates nothing");
  LengthClass& requests = request.workload.classes.emplace_back(kUsualRequests);
  const int32_t half = std::max(1, request.model.max_positions / 2);
  requests.prompt = std::min(requests.prompt, half);
  requests.output = std::min(requests.output, half);
  request.machines = {std::move(profile)};
  SLUICE_ASSIGN_OR_RETURN(PlanResult made, MakePlan(request));
  return ModelSpeed{.tokens_per_second = made.best.tokens_per_second,
                    .prompt = requests.prompt,
                    .generated = requests.output,
                    .requests = requests.count};
}

}  // namespace sluice
