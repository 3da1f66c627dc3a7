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

// Returns what FlexGen's placement of weights (init_weight_list in its
// flex_opt.py) comes to for a layer: it places whole tensors of each half of a
// layer, one to the disk, the host or the device as the middle of its bytes
// lies in the percentages, in this order.
TierFractions PlacedWeights(const DecoderSpec& model,
                            const TierFractions& requested);

// Returns the run's policy, with the weights as they were placed.
Policy PolicyOf(const PublishedRun& run, const DecoderSpec& model);

// Returns the names of the constants that are fitted; the others keep their
// prior values.
std::vector<std::string> FreeConstants(absl::string_view hardware);
MachineProfile PaperMachine(absl::string_view hardware,
                            const FittedConstants& constants);
// Returns the options that stand for what FlexGen does otherwise than Sluice.
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
// Predicts a run with FlexGen's placements and schedule.
absl::StatusOr<PaperPrediction> PredictRun(const PublishedRun& run,
                                           const FittedConstants& constants);

// predicted / published - 1.
double ErrorOf(const PublishedRun& run, const PaperPrediction& prediction);

double Median(std::vector<double> values);  // REQUIRES: not empty

// kNotFound: no such file.
absl::StatusOr<std::vector<PublishedRun>> ReadRuns(const std::string& path);
// Each reads one of the two tables in the tree.
absl::StatusOr<std::vector<PublishedRun>> MeasuredRuns();
absl::StatusOr<std::vector<PublishedRun>> MoreRuns();

}  // namespace sluice
