#include "coordinator/planning/job_planner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "scheduler/plan/rank_layout.h"

namespace sluice {
namespace {

// A plan replaces a running one only if it is at least this many times as fast,
// and saves more time than loading takes (SavedSeconds).
constexpr double kMinGain = 1.1;

// Whether some stage has reserved the plan's KV, and does not share its memory
// by need.
bool ReservesKv(const Plan& plan) {
  return plan.kv_positions > 0 &&
         std::any_of(plan.stages.begin(), plan.stages.end(),
                     [](const StagePlan& stage) {
                       return !stage.policy.automatic_kv_cache;
                     });
}

// The task's machines. None is a part of another: two workers have no stage
// together.
std::vector<MachineProfile> WorkersOf(const PlanTask& task) {
  std::vector<MachineProfile> workers = task.machines;
  for (MachineProfile& worker : workers) worker.part_of.clear();
  return workers;
}

// The best plan of all machines, with the ranks that it chooses.
absl::StatusOr<Plan> BestPlan(const PlanRequest& request) {
  if (!HasRankChoice(request.machines)) {
    SLUICE_ASSIGN_OR_RETURN(PlanResult result, MakePlan(request));
    return std::move(result.best);
  }
  SLUICE_ASSIGN_OR_RETURN(RankLayout made, MakeRankLayout(request, 1));
  return std::move(made.layout.best.pipelines.front().plan);
}

// Returns the seconds that another plan for all of the workload saves: the
// present one has computed some of it already.
double SavedSeconds(const Workload& workload, const PlanTask& task,
                    double present, double other) {
  const double rows = RowsOf(workload).all();
  const double left = rows > 0 ? std::max(0.0, 1 - task.held_rows / rows) : 1.0;
  return left * present - other;
}

}  // namespace

PhaseRows RowsOf(const Workload& workload) {
  return {workload.prompt_tokens() - workload.shared_tokens(),
          workload.output_tokens() - static_cast<double>(workload.requests())};
}

absl::StatusOr<Plan> FindPlan(PlanRequest request, const Workload& workload,
                              const PlanTask& task,
                              std::optional<Plan>* present) {
  request.workload = workload;
  request.machines = WorkersOf(task);
  SLUICE_ASSIGN_OR_RETURN(Plan best, BestPlan(request));
  if (task.present) {
    std::vector<StageChoice> stages;
    for (const StagePlan& stage : task.present->stages) {
      stages.push_back({stage.machine, stage.layers, stage.policy});
    }
    const bool reserved = ReservesKv(*task.present);
    if (reserved) request.kv_positions = SequencePositions(*task.present);
    SLUICE_ASSIGN_OR_RETURN(
        *present,
        EvaluatePlan(request, stages, task.present->block.num_blocks));
    if (reserved && (*present)->kv_positions < workload.longest()) {
      return best;
    }
    const double rate = (*present)->tokens_per_second;
    if (best.tokens_per_second < kMinGain * rate) {
      return absl::AlreadyExistsError(
          absl::StrFormat("the present plan gives %.4g tokens/s, the best %.4g",
                          rate, best.tokens_per_second));
    }
    const double saved =
        SavedSeconds(workload, task, (*present)->seconds, best.seconds);
    if (saved < task.load_seconds) {
      return absl::AlreadyExistsError(absl::StrFormat(
          "the best plan would save %.3g s, what is computed already counted, "
          "but loading takes %.3g s",
          saved, task.load_seconds));
    }
  }
  return best;
}

absl::StatusOr<Layout> FindLayout(PlanRequest request, const Workload& workload,
                                  const PlanTask& task) {
  request.workload = workload;
  request.machines = WorkersOf(task);
  LayoutResult result;
  if (HasRankChoice(request.machines)) {
    // Groups' own plans choose ranks again, for as many requests as they get.
    SLUICE_ASSIGN_OR_RETURN(RankLayout made,
                            MakeRankLayout(request, task.layout->replicas));
    result = std::move(made.layout);
    request.machines = std::move(made.grouping.machines);
  } else {
    SLUICE_ASSIGN_OR_RETURN(result, MakeLayout(request, task.layout->replicas));
  }
  // Groups that the model does not fit any more do no work.
  std::vector<std::vector<int>> present;
  for (const std::vector<int>& group : task.layout->present) {
    if (EvaluateLayout(request, {group}).ok()) present.push_back(group);
  }
  if (present.empty()) return std::move(result.best);
  SLUICE_ASSIGN_OR_RETURN(const Layout before,
                          EvaluateLayout(request, present));
  if (result.best.tokens_per_second < kMinGain * before.tokens_per_second) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "they give %.4g tokens/s, the best %.4g", before.tokens_per_second,
        result.best.tokens_per_second));
  }
  const double saved =
      SavedSeconds(workload, task, before.seconds, result.best.seconds);
  if (saved < task.load_seconds) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "the best would save %.3g s, what is computed already counted, but "
        "loading takes %.3g s",
        saved, task.load_seconds));
  }
  return std::move(result.best);
}

PlanAnswer AnswerTask(const PlanRequest& base, const PlanTask& task,
                      RequestQueue* queue) {
  PlanAnswer answer;
  answer.ticket = task.ticket;
  const absl::StatusOr<LengthHistogram> lengths = queue->PendingLengths();
  if (!lengths.ok()) {
    answer.plan = lengths.status();
    answer.layout = lengths.status();
  } else if (lengths->requests() == 0) {
    answer.plan = absl::NotFoundError("no requests wait");
    answer.layout = answer.plan.status();
  } else if (task.layout) {
    answer.layout =
        FindLayout(base, lengths->ToWorkload(task.output_share), task);
  } else {
    const Workload workload =
        ShareOf(lengths->ToWorkload(task.output_share), task.share);
    answer.rows = RowsOf(workload);
    answer.plan = FindPlan(base, workload, task, &answer.present);
  }
  return answer;
}

}  // namespace sluice
