#include "tests/bench/paper/paper_search.h"

#include <algorithm>

#include "common/status_macros.h"

namespace sluice {
namespace {

// There are enough requests for starts and ends not to matter; their number is
// a multiple of all blocks.
constexpr int64_t kRequests = 23040;

}  // namespace

absl::StatusOr<SearchComparison> CompareSearch(const PublishedRun& run) {
  const FittedConstants constants = FittedFor(run.hardware);
  PlanRequest request;
  SLUICE_ASSIGN_OR_RETURN(request.model, PaperModel(run.model));
  request.workload = {{{run.prompt, run.output, kRequests}}};
  request.machines = {PaperMachine(run.hardware, constants)};
  request.options = FlexGenOptions(request.machines[0], constants);
  request.choices.num_blocks = {1};
  if (run.compress_weights) {
    request.choices.weight_formats.push_back(WeightFormat::kInt4);
  }
  if (run.compress_kv) {
    request.choices.kv_formats.push_back(WeightFormat::kInt4);
  }
  SearchComparison comparison;
  SLUICE_ASSIGN_OR_RETURN(const PaperPrediction flexgen,
                          PredictRun(run, constants));
  comparison.flexgen = flexgen.tokens_per_second;
  for (const int32_t tokens :
       {256, 512, 1024, 2048, 4096, 8192, run.gbs * run.prompt}) {
    if (tokens < run.gbs) continue;
    StageChoice choice;
    choice.layers = {0, request.model.num_layers};
    choice.policy = PolicyOf(run, request.model);
    choice.policy.max_step_tokens = tokens;
    SLUICE_ASSIGN_OR_RETURN(const Plan plan,
                            EvaluatePlan(request, {choice}, 1));
    comparison.flexgen_refilled =
        std::max(comparison.flexgen_refilled, plan.tokens_per_second);
  }
  SLUICE_ASSIGN_OR_RETURN(const PlanResult result, MakePlan(request));
  comparison.planned = result.best;
  return comparison;
}

}  // namespace sluice
