#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "common/policy.h"
#include "common/types.h"
#include "scheduler/cost/cost_model.h"
#include "scheduler/plan/split.h"
#include "scheduler/steps/workload.h"

// The plan of a job: which layers run where, with which policy, how long that
// takes, and what else was considered. Pure and deterministic: the same
// request gives the same plan.

namespace sluice {

// The load of one tier of a stage's machine.
struct CapacityUse {
  std::string what;  // "host memory"
  double bytes = 0;
  double limit = 0;
};

struct StagePlan {
  std::string worker;  // MachineProfile::name
  int machine = 0;     // index in PlanRequest::machines
  LayerRange layers;
  // Fractions explicit, automatic_* false. But KV that is all in memory of a
  // machine without a device stays automatic: its pages are taken by need,
  // while named shares reserve the longest request's for each sequence.
  Policy policy;
  ResourceSeconds busy = {};  // of each resource, over the whole job
  double seconds = 0;         // of the stage's steps, over the whole job
  std::vector<CapacityUse> capacities;
};

struct Plan {
  std::vector<StagePlan> stages;  // in order of their layers
  BlockShape block;
  int64_t kv_positions = 0;      // reserved, for all sequences in flight
  double steps = 0;              // in the job, all blocks together
  double seconds = 0;            // of the job
  double tokens_per_second = 0;  // generated
  // The time from a request's first step to its last, on average.
  double latency_seconds = 0;
  // The bytes that each wire carries for a generated token, all stages
  // together; 0 for the resources that compute.
  std::array<double, kNumResources> bytes_per_token = {};
  // The resource, of all stages', to which most of the job's time goes.
  Resource binding_resource = Resource::kDeviceCompute;
  int binding_stage = 0;
  // Why ranks keep their weights while they exchange rows, with what the
  // exchange and its alternative take: a sentence. "" if each stage has one.
  std::string tensor_parallel;
  // Why prompts are cut into slices that follow each other, or are not: a
  // sentence. "" where nothing was compared.
  std::string slicing;
};

// The policies that the search may choose from. An empty list leaves it to the
// search; a list of one fixes the value.
struct PolicyChoices {
  std::vector<int32_t> gbs;
  std::vector<int32_t> num_microbatches;
  std::vector<int32_t> num_blocks;
  std::vector<int32_t> max_step_tokens;
  std::vector<int32_t> threads;
  std::vector<int32_t> ranks;  // of machines that have a choice
  std::vector<AttentionSite> attention_sites;
  // Policy's; nullopt leaves it to the search.
  std::optional<bool> slicing;
  std::optional<int32_t> slice_context;
  // These are not left to the search, for compression changes answers.
  std::vector<WeightFormat> weight_formats = {WeightFormat::kFull};
  std::vector<WeightFormat> kv_formats = {WeightFormat::kFull};
  DType link_dtype = DType::kFloat32;  // see Policy
};

struct PlanRequest {
  DecoderSpec model;  // sizes are what counts
  Workload workload;
  std::vector<MachineProfile> machines;  // one a worker, in pipeline order
  DType dtype = DType::kBFloat16;
  Split split = Split::kEven;
  PolicyChoices choices;
  // The limit of Plan::latency_seconds; 0: none.
  double max_latency_seconds = 0;
  // Positions that a sequence may have, which workers load their stages for;
  // 0: those of the longest request.
  int32_t max_model_len = 0;
  // Positions of a sequence for which KV is reserved; 0: those of the longest
  // request.
  int32_t kv_positions = 0;
  // If false, blocks start together, are not refilled, and prompts are not cut
  // into slices (BlockSteps).
  bool refill = true;
  CostOptions options;

  // Positions of a sequence for which KV is reserved.
  int32_t longest() const;
  // kInvalidArgument names what is wrong: no machines, a profile, model or
  // workload that makes no sense, a choice that is not positive.
  absl::Status Check() const;
};

// Something else that was considered: the best of its kind.
struct Alternative {
  std::string description;       // "gbs 16"
  double tokens_per_second = 0;  // 0: does not fit
  std::string why;               // "host memory is short by 1.2 GiB"
};

struct PlanResult {
  Plan best;
  std::vector<Alternative> rejected;
  int64_t candidates = 0;       // block shapes and formats considered
  int64_t programs_solved = 0;  // linear programs
};

// The plan with the least predicted time of the job. Machines beyond the
// number of layers are left out; with Split::kBalanced also those that would
// only slow the others down, and machines may change places.
//
// kInvalidArgument as request.Check() says. kResourceExhausted if no policy
// fits: which capacity of which worker is short and by how much, and the
// nearest that would fit. kFailedPrecondition if none is within the latency
// asked for, with the least that is possible.
absl::StatusOr<PlanResult> MakePlan(const PlanRequest& request);

// The same, faster, for comparing groups of machines: `rehearsals` of the best
// plans are simulated, prompts are cut in one way, and nothing is said of what
// was rejected.
absl::StatusOr<PlanResult> MakeQuickPlan(const PlanRequest& request,
                                         int rehearsals);

// A stage as somebody chose it.
struct StageChoice {
  int machine = 0;  // index in PlanRequest::machines
  LayerRange layers;
  Policy policy;
};

// Says what a given plan would do. Fractions that a policy leaves open are
// resolved as the runtime does: on the device as far as there is room, then in
// host memory, then on disk; first KV, up to half of the room if the weights
// need it, then weights. gbs, num_microbatches and max_step_tokens are the
// first stage's. A plan that does not fit is predicted all the same: its
// `capacities` say so, and Fits() is false.
//
// kInvalidArgument: stages that do not cover the model's layers in order, or
// as request.Check() says.
absl::StatusOr<Plan> EvaluatePlan(const PlanRequest& request,
                                  const std::vector<StageChoice>& stages,
                                  int32_t num_blocks);

// Returns the machines with the ranks that the stages' policies name, where
// they have a choice: what plans are evaluated on. kInvalidArgument if one may
// not have so many, or is no machine.
absl::StatusOr<std::vector<MachineProfile>> WithNamedRanks(
    std::vector<MachineProfile> machines,
    const std::vector<StageChoice>& stages);
bool HasRankChoice(const std::vector<MachineProfile>& machines);

// Plan::kv_positions of one sequence; 0 if the plan does not say.
int32_t SequencePositions(const Plan& plan);

// Returns BlockShape::steps_in_flight: one more than there are stages, which
// keeps the last one busy while a step is on its way back; 0 for one stage, or
// without slicing.
int32_t StepsInFlight(bool slicing, int num_stages);

// Whether every tier holds what the plan puts there.
bool Fits(const Plan& plan);

// Plans from the one of least latency to the one of highest throughput, at
// most `points`, each faster than the one before it. Errors as MakePlan's.
absl::StatusOr<std::vector<Plan>> Frontier(const PlanRequest& request,
                                           int points);

// The lack of the smallest choice: gbs, num_microbatches and num_blocks of 1,
// or the least of request.choices.
struct Shortage {
  std::string worker;
  std::string what;  // the capacity; "" if all fits
  double bytes = 0;  // what is missing at least, all else at its best
  double limit = 0;  // what there is
  // The changes that would make it fit: "compress-weights=int4", "1.5 GiB more
  // host memory".
  std::vector<std::string> remedies;
};

absl::StatusOr<Shortage> FindShortage(const PlanRequest& request);

}  // namespace sluice
