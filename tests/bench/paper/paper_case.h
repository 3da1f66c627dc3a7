#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/machine_profile.h"
#include "common/policy.h"
#include "scheduler/cost/cost_model.h"
#include "scheduler/cost/model_sizes.h"

// Published runs of FlexGen, in the cost model's terms.

namespace sluice {

// A row of flexgen_measured.csv.
struct PublishedRun {
  std::string hardware;  // "t4", "a100"
  std::string model;     // "opt-30b"
  int32_t prompt = 0;
  int32_t output = 0;
  int32_t gbs = 0;
  int32_t num_microbatches = 0;
  // Requested, in shares of 1.
  TierFractions weights, kv_cache, activations;
  bool overlap = true;
  bool host_attention = false;
  bool compress_weights = false;
  bool compress_kv = false;
  double tokens_per_second = 0;

  int32_t block() const { return gbs * num_microbatches; }
  std::string Name() const;  // "t4 opt-30b 256+32 160x2"
};

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

// What a machine does that no data sheet says; the rest of its profile is data
// sheets' and the constants that FlexGen's cost-model script ships.
struct FittedConstants {
  // Matrix products of the device.
  double product_flops = 0;
  // The host's attention: K and V read, and what each call costs beside.
  double host_attention_bytes = 0;
  double host_call_seconds = 0;
  // Making 4 bits into float16 on the device: bytes of float16.
  double dequantize_bytes = 0;
  // KV between the host's pageable memory and the device.
  double kv_in_bytes = 0;
  double kv_out_bytes = 0;
  double disk_read_bytes = 0;
  // What does not fit into host memory and is paged.
  double paging_bytes = 0;

  // All of them, by name.
  std::vector<std::pair<std::string, double*>> Members();
};
// Before fitting: from data sheets and FlexGen's script, where these say.
FittedConstants PriorFor(absl::string_view hardware);
// Which are fitted, by name; the others keep their prior values.
std::vector<std::string> FreeConstants(absl::string_view hardware);
// As fit_paper found them. REQUIRES: "t4" or "a100".
FittedConstants FittedFor(absl::string_view hardware);
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

// Whether the constants were fitted on this run (see fitted.cc).
bool WasFitted(const PublishedRun& run);

// kNotFound: no such file.
absl::StatusOr<std::vector<PublishedRun>> ReadRuns(const std::string& path);
// Both tables, in the tree.
absl::StatusOr<std::vector<PublishedRun>> MeasuredRuns();
absl::StatusOr<std::vector<PublishedRun>> MoreRuns();

}  // namespace sluice
