#include "coordinator/planning/job_planner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

bool PutsKvOnDisk(const Plan& plan) {
  return std::any_of(
      plan.stages.begin(), plan.stages.end(),
      [](const StagePlan& stage) { return stage.policy.kv_cache.disk > 0; });
}

}  // namespace

absl::StatusOr<Plan> FindPlan(const PlanningOptions& options,
                              const Workload& workload, const PlanTask& task,
                              std::optional<Plan>* present) {
  PlanRequest request;
  request.model = options.model;
  request.workload = workload;
  request.machines = task.machines;
  request.dtype = options.dtype;
  request.split = options.split;
  request.choices = options.choices;
  request.most_positions = options.max_model_len;
  request.refill = options.refill;
  SLUICE_ASSIGN_OR_RETURN(PlanResult result, MakePlan(request));
  if (PutsKvOnDisk(result.best)) {
    request.least_positions = options.max_model_len;
    SLUICE_ASSIGN_OR_RETURN(result, MakePlan(request));
  }
  if (task.present) {
    std::vector<StageChoice> stages;
    for (const StagePlan& stage : task.present->stages) {
      stages.push_back({stage.machine, stage.layers, stage.policy});
    }
    request.least_positions = 0;
    SLUICE_ASSIGN_OR_RETURN(
        *present,
        EvaluatePlan(request, stages, task.present->block.num_blocks));
    const double rate = (*present)->tokens_per_second;
    if (result.best.tokens_per_second < options.least_gain * rate) {
      return absl::AlreadyExistsError(
          absl::StrFormat("the present plan gives %.4g tokens/s, the best %.4g",
                          rate, result.best.tokens_per_second));
    }
    const double saved = (*present)->seconds - result.best.seconds;
    if (saved < task.load_seconds) {
      return absl::AlreadyExistsError(absl::StrFormat(
          "the best plan would save %.3g s, but loading takes %.3g s", saved,
          task.load_seconds));
    }
  }
  return std::move(result.best);
}

JobPlanner::JobPlanner(RequestQueue* queue, PlanningOptions options, Done done)
    : queue_(queue),
      options_(std::move(options)),
      done_(std::move(done)),
      thread_("job-planner", [this] { Run(); }) {}

JobPlanner::~JobPlanner() {
  {
    MutexLock lock(&mu_);
    closed_ = true;
    changed_.NotifyOne();
  }
  thread_.Join();
}

void JobPlanner::Search(PlanTask task) {
  MutexLock lock(&mu_);
  next_ = std::move(task);
  changed_.NotifyOne();
}

void JobPlanner::Run() {
  for (;;) {
    PlanTask task;
    {
      MutexLock lock(&mu_);
      while (!next_ && !closed_) changed_.Wait(&mu_);
      if (closed_) return;
      task = *std::exchange(next_, std::nullopt);
    }
    done_(Answer(task));
  }
}

PlanAnswer JobPlanner::Answer(const PlanTask& task) {
  PlanAnswer answer;
  answer.ticket = task.ticket;
  const absl::StatusOr<LengthHistogram> lengths = queue_->PendingLengths();
  if (!lengths.ok()) {
    answer.plan = lengths.status();
  } else if (lengths->requests() == 0) {
    answer.plan = absl::NotFoundError("no requests wait");
  } else {
    const Workload workload = lengths->ToWorkload(task.output_share);
    answer.rows = workload.prompt_tokens() + workload.output_tokens();
    answer.plan = FindPlan(options_, workload, task, &answer.present);
  }
  return answer;
}

}  // namespace sluice
