#include "scheduler/plan/job_shares.h"

#include <algorithm>
#include <map>

#include "scheduler/plan/stage_case.h"

namespace sluice {
namespace {

// Makes a plan that of `factor` times as many requests.
void Scale(double factor, Plan* plan) {
  plan->seconds *= factor;
  plan->steps *= factor;
  for (StagePlan& stage : plan->stages) {
    stage.seconds *= factor;
    for (double& busy : stage.busy) busy *= factor;
  }
}

}  // namespace

PipelinePlan PipelineOf(const PlanRequest& request,
                        const std::vector<int>& group, const Plan& plan,
                        double share) {
  PipelinePlan pipeline = {.machines = group, .share = share, .plan = plan};
  for (StagePlan& stage : pipeline.plan.stages) {
    stage.machine = group[static_cast<size_t>(stage.machine)];
    stage.worker = request.machines[stage.machine].name;
  }
  return pipeline;
}

std::vector<PipelinePlan> ShareByRates(
    const PlanRequest& request, const std::vector<std::vector<int>>& groups,
    const std::vector<const Plan*>& plans) {
  double sum = 0;
  for (const Plan* plan : plans) sum += plan->tokens_per_second;
  const double tokens = request.workload.output_tokens();
  std::vector<PipelinePlan> pipelines;
  for (size_t g = 0; g < groups.size(); ++g) {
    const double share = plans[g]->tokens_per_second / sum;
    pipelines.push_back(PipelineOf(request, groups[g], *plans[g], share));
    Plan& plan = pipelines.back().plan;
    Scale(share * tokens / (plan.tokens_per_second * plan.seconds), &plan);
    // However small the share, each request takes its time.
    plan.seconds = std::max(plan.seconds, plan.latency_seconds);
  }
  return pipelines;
}

double LayoutSeconds(const PlanRequest& request,
                     const std::vector<PipelinePlan>& pipelines) {
  const MachineClasses classes(request.machines);
  double seconds = 0;
  std::map<int, double> of_host;
  for (const PipelinePlan& pipeline : pipelines) {
    seconds = std::max(seconds, pipeline.plan.seconds);
    for (const StagePlan& stage : pipeline.plan.stages) {
      of_host[classes.host(stage.machine)] += stage.seconds;
    }
  }
  if (pipelines.size() > 1) {
    for (const auto& [host, sum] : of_host) seconds = std::max(seconds, sum);
  }
  return seconds;
}

}  // namespace sluice
