#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "tests/bench/paper/paper_case.h"
#include "tests/bench/paper/paper_search.h"

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
  return PrintSearch(measured);
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
