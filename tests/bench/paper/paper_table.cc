#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "tests/bench/paper/paper_case.h"
#include "tests/bench/paper/paper_search.h"
#include "tests/bench/paper/scaling.h"

// Prints what the cost model says of FlexGen's published runs beside what was
// measured, and the planner's policies beside FlexGen's: tables in Markdown.
//
//   paper_table [FILE]
//
// With a file of runs in the format of flexgen_measured.csv: those alone.

namespace sluice {
namespace {

absl::Status PrintRuns(const std::vector<PublishedRun>& runs) {
  absl::PrintF(
      "| run | published | predicted | error | | prefill s | decode s | of it "
      "paging | binding |\n|---|---|---|---|---|---|---|---|---|\n");
  std::vector<double> errors;
  for (const PublishedRun& run : runs) {
    SLUICE_ASSIGN_OR_RETURN(const PaperPrediction prediction,
                            PredictRun(run, FittedFor(run.hardware)));
    const double error = ErrorOf(run, prediction);
    if (!WasFitted(run)) errors.push_back(std::abs(error));
    absl::PrintF(
        "| %s | %.2f | %.2f | %+.0f %% | %s | %.0f | %.0f | %.0f | %s |\n",
        run.Name(), run.tokens_per_second, prediction.tokens_per_second,
        100 * error, WasFitted(run) ? "fitted" : "", prediction.prefill_seconds,
        prediction.decode_seconds, prediction.paging_seconds,
        std::string(ResourceName(prediction.binding)));
  }
  absl::PrintF(
      "\nNot fitted: %d runs; median error %.1f %%, worst %.1f %%.\n\n",
      errors.size(), 100 * Median(errors),
      100 * *std::max_element(errors.begin(), errors.end()));
  return absl::OkStatus();
}

// Writes in short what the search decided.
std::string Short(const Policy& policy) {
  const auto percent = [](const TierFractions& f) {
    return absl::StrFormat("%.0f/%.0f/%.0f", 100 * f.device, 100 * f.host,
                           100 * f.disk);
  };
  return absl::StrFormat(
      "%dx%d, w %s c %s h %s, weights %s, KV %s, attention on the %s",
      policy.gbs, policy.num_microbatches, percent(policy.weights),
      percent(policy.kv_cache), percent(policy.activations),
      std::string(WeightFormatName(policy.compress_weights)),
      std::string(WeightFormatName(policy.compress_kv)),
      policy.attention_site == AttentionSite::kHost ? "host" : "device");
}

absl::Status PrintSearch(const std::vector<PublishedRun>& runs) {
  absl::PrintF(
      "| run | FlexGen's policy | with refill | planner's | gain | over refill "
      "| planner's policy |\n|---|---|---|---|---|---|---|\n");
  for (const PublishedRun& run : runs) {
    if (run.hardware != "t4") continue;
    SLUICE_ASSIGN_OR_RETURN(const SearchComparison search, CompareSearch(run));
    const double planned = search.planned.tokens_per_second;
    const Policy& policy = search.planned.stages.front().policy;
    absl::PrintF("| %s | %.2f | %.2f | %.2f | %.2f | %.2f | %s |\n", run.Name(),
                 search.flexgen, search.flexgen_refilled, planned,
                 planned / search.flexgen, planned / search.flexgen_refilled,
                 Short(policy));
  }
  return absl::OkStatus();
}

// FlexGen publishes where the time of one run went (table 4), overlap off.
absl::Status PrintBreakdown(const std::vector<PublishedRun>& runs) {
  struct Line {
    const char* what;
    double published;  // seconds of prefill and decoding
    std::vector<Resource> resources;
  };
  const Line lines[] = {{"compute",
                         2220 + 1498,
                         {Resource::kDeviceCompute, Resource::kHostCompute}},
                        {"weights and KV read",
                         768 + 3047 + 7046,
                         {Resource::kDiskRead, Resource::kHostToDevice}},
                        {"KV written",
                         261 + 124,
                         {Resource::kDiskWrite, Resource::kDeviceToHost}}};
  for (const PublishedRun& run : runs) {
    if (run.model != "opt-175b" || run.overlap || !run.host_attention) continue;
    SLUICE_ASSIGN_OR_RETURN(const PaperPrediction prediction,
                            PredictRun(run, FittedFor(run.hardware)));
    absl::PrintF(
        "| seconds of %s, overlap off | published | predicted |\n"
        "|---|---|---|\n",
        run.Name());
    for (const Line& line : lines) {
      double seconds = 0;
      for (const Resource r : line.resources) {
        seconds += prediction.busy[static_cast<int>(r)];
      }
      absl::PrintF("| %s | %.0f | %.0f |\n", line.what, line.published,
                   seconds);
    }
    absl::PrintF("| prefill | 2711 | %.0f |\n| decoding | 11315 | %.0f |\n\n",
                 prediction.prefill_seconds, prediction.decode_seconds);
  }
  return absl::OkStatus();
}

// Writes a plan in a line.
std::string Shape(const Plan& plan) {
  const Policy& policy = plan.stages.front().policy;
  double busy = 0;
  for (const StagePlan& stage : plan.stages) {
    busy += 100 * stage.seconds / plan.seconds /
            static_cast<double>(plan.stages.size());
  }
  return absl::StrFormat(
      "%d blocks of %s, up to %d tokens a step, %s; busy %.0f %%",
      plan.block.num_blocks, Short(policy), plan.block.max_step_tokens,
      std::string(ResourceName(plan.binding_resource)), busy);
}

// FlexGen's table 3.
absl::Status PrintScaling() {
  const std::vector<ScalingCase> cases = ScalingCases();
  absl::PrintF(
      "| model, GPUs | FlexGen's policy | generation: published | predicted | "
      "error | decoding: published | predicted | error | busy |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
  const auto print = [](const PublishedRun& run, int machines, bool pageable,
                        const ScalingFigures& published) -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(const ScalingPrediction predicted,
                            PredictScaling(run, machines, pageable));
    const ScalingFigures& found = predicted.figures;
    absl::PrintF(
        "| %s, %d | %dx%d%s | %.2f | %.2f | %+.0f %% | %.2f | %.2f | %+.0f %% "
        "| %.0f %% |\n",
        run.model, machines, run.gbs, run.num_microbatches,
        pageable ? ", weights pageable" : "", published.generation,
        found.generation, 100 * (found.generation / published.generation - 1),
        published.decoding, found.decoding,
        100 * (found.decoding / published.decoding - 1), 100 * predicted.busy);
    return absl::OkStatus();
  };
  for (const ScalingCase& c : cases) {
    SLUICE_RETURN_IF_ERROR(print(c.one, 1, false, c.published_one));
    SLUICE_RETURN_IF_ERROR(print(c.four, 4, false, c.published_four));
    if (!c.pageable) continue;
    SLUICE_RETURN_IF_ERROR(print(c.four, 4, true, c.published_four));
  }
  absl::PrintF(
      "\n| model, GPUs | FlexGen published | Sluice planned | gain | of 4 over "
      "1: FlexGen | Sluice | plan |\n|---|---|---|---|---|---|---|\n");
  for (const ScalingCase& c : cases) {
    double one = 0;
    for (const int machines : {1, 4}) {
      SLUICE_ASSIGN_OR_RETURN(
          const Plan plan,
          PlanScaling(machines == 1 ? c.one : c.four, machines));
      const ScalingFigures& published =
          machines == 1 ? c.published_one : c.published_four;
      if (machines == 1) one = plan.tokens_per_second;
      const auto ratio = [&](double of, double to) {
        return machines == 1 ? std::string() : absl::StrFormat("%.2f", of / to);
      };
      absl::PrintF(
          "| %s, %d | %.2f | %.2f | %.2f | %s | %s | %s |\n", c.one.model,
          machines, published.generation, plan.tokens_per_second,
          plan.tokens_per_second / published.generation,
          ratio(c.published_four.generation, c.published_one.generation),
          ratio(plan.tokens_per_second, one), Shape(plan));
    }
  }
  return absl::OkStatus();
}

absl::Status Print() {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<PublishedRun> measured,
                          MeasuredRuns());
  SLUICE_ASSIGN_OR_RETURN(const std::vector<PublishedRun> more, MoreRuns());
  absl::PrintF("## The published runs\n\n");
  SLUICE_RETURN_IF_ERROR(PrintRuns(measured));
  absl::PrintF("## More of the same papers\n\n");
  SLUICE_RETURN_IF_ERROR(PrintRuns(more));
  absl::PrintF("## Where the time goes\n\n");
  SLUICE_RETURN_IF_ERROR(PrintBreakdown(more));
  absl::PrintF("## The search pays\n\n");
  SLUICE_RETURN_IF_ERROR(PrintSearch(measured));
  absl::PrintF("\n## Four machines\n\n");
  return PrintScaling();
}

absl::Status PrintFile(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<PublishedRun> runs, ReadRuns(path));
  return PrintRuns(runs);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  const absl::Status status =
      argc > 1 ? sluice::PrintFile(argv[1]) : sluice::Print();
  if (!status.ok()) absl::FPrintF(stderr, "%s\n", status.ToString());
  return status.ok() ? 0 : 1;
}
