#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/machine_profile.h"
#include "common/policy.h"
#include "scheduler/cost/cost_model.h"
#include "scheduler/cost/model_sizes.h"
#include "tests/bench/paper/fitted.h"

// Published runs of FlexGen, in the cost model's terms.

namespace sluice {

// kInvalidArgument names the line that is not one.
absl::StatusOr<std::vector<PublishedRun>> ParsePublishedRuns(
    absl::string_view csv);

// kNotFound for a model that no run has.
absl::StatusOr<DecoderSpec> PaperModel(absl::string_view name);

// FlexGen's placement of weights (init_weight_list in its flex_opt.py): whole
// tensors of each half of a layer; one goes to the disk, the host or the
// device as the middle of its bytes lies in the percentages, in this order.
// What it comes to for a layer.
TierFractions PlacedWeights(const DecoderSpec& model,
                            const TierFractions& requested);

// The run's policy, with what was placed.
Policy PolicyOf(const PublishedRun& run, const DecoderSpec& model);

// Which are fitted, by name; the others keep their prior values.
std::vector<std::string> FreeConstants(absl::string_view hardware);
MachineProfile PaperMachine(absl::string_view hardware,
                            const FittedConstants& constants);
// How FlexGen does what Sluice does otherwise.
CostOptions FlexGenOptions(const MachineProfile& machine,
                           const FittedConstants& constants);

struct PaperPrediction {
  double tokens_per_second = 0;
  double paging_seconds = 0;  // of decode_seconds
  double prefill_seconds = 0;
  double decode_seconds = 0;
  ResourceSeconds busy = {};
  Resource binding = Resource::kDeviceCompute;
};
// With FlexGen's placements and schedule.
absl::StatusOr<PaperPrediction> PredictRun(const PublishedRun& run,
                                           const FittedConstants& constants);

// predicted / published - 1.
double ErrorOf(const PublishedRun& run, const PaperPrediction& prediction);

double Median(std::vector<double> values);  // REQUIRES: not empty

// kNotFound: no such file.
absl::StatusOr<std::vector<PublishedRun>> ReadRuns(const std::string& path);
// Both tables, in the tree.
absl::StatusOr<std::vector<PublishedRun>> MeasuredRuns();
absl::StatusOr<std::vector<PublishedRun>> MoreRuns();

}  // namespace sluice
