#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/tier.h"

// The published runs of FlexGen, and the constants that were fitted to them.

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

// The figures of a machine that no data sheet gives; the rest of its profile is
// data sheets' and the constants that FlexGen's cost-model script ships.
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
  // Paging of what does not fit into host memory.
  double paging_bytes = 0;

  // Returns all constants by name.
  std::vector<std::pair<std::string, double*>> Members();
};
// Returns the constants before fitting: from data sheets and FlexGen's script,
// where these say.
FittedConstants PriorFor(absl::string_view hardware);
// Returns the constants as fit_paper found them. REQUIRES: "t4" or "a100".
FittedConstants FittedFor(absl::string_view hardware);
// Whether the constants were fitted on this run (see fitted.cc).
bool WasFitted(const PublishedRun& run);

}  // namespace sluice
