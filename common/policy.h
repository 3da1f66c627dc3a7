#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tier.h"
#include "common/types.h"

namespace sluice {

// The order in which a block's layers and micro-batches are computed.
enum class Schedule {
  // Layer by layer, all micro-batches in each (FlexGen's zig-zag block
  // schedule, section 4.2): weights are read once for all micro-batches.
  kZigZag,
  // Micro-batch by micro-batch, all layers for each, as other systems do, for
  // comparison. Weights are read once for each micro-batch.
  kRowByRow,
};

// The place of attention over KV in host memory or on disk: the host, which
// then gets q, k and v of the new positions and returns the result; or the
// device, to which KV is copied. The CPU backend ignores it, as host and device
// are one.
enum class AttentionSite { kHost, kDevice };

// The greatest slice_context: costs of chunks then fit in 64 bits.
inline constexpr int32_t kMaxSliceContext = 1 << 28;

// The most ranks that compute a stage together, tensor parallel.
inline constexpr int32_t kMaxRanks = 64;

// One worker's settings to run its stage (FlexGen, section 4.3: the policy of
// 11 variables).
struct Policy {
  int32_t gbs = 64;  // sequences in a micro-batch
  int32_t num_microbatches =
      1;  // micro-batches that share one pass over the weights
  int32_t max_step_tokens = 2048;  // new tokens in a micro-batch of one step:
                                   // bounds activations and prefill chunks
  // The worker chooses these fractions when it loads, to fill the device first,
  // then memory, then disk.
  bool automatic_weights = true;
  bool automatic_kv_cache = true;
  bool automatic_activations = true;  // never the disk
  TierFractions weights;
  TierFractions kv_cache;
  // Activations of micro-batches between their turns; see ActivationStager.
  TierFractions activations;
  DType dtype = DType::kFloat32;
  WeightFormat compress_weights = WeightFormat::kFull;
  WeightFormat compress_kv = WeightFormat::kFull;
  AttentionSite attention_site = AttentionSite::kHost;
  float sparsity = 1;  // share of V that a decoding row reads
  Schedule schedule = Schedule::kZigZag;
  bool overlap = true;  // move data while computing
  // If false, each prompt chunk of a micro-batch takes as many rows as the
  // longest, as in systems that pad; for comparison.
  bool packing = true;
  int32_t compute_threads = 0;  // 0: as the worker was configured
  // The ranks that compute the stage together, tensor parallel; 0: all that the
  // worker may have. Answers do not depend on it.
  int32_t ranks = 0;
  // The format of residual streams on their way between stages: float32, or
  // bfloat16, which halves the bytes, but rounds: answers then depend on where
  // the layers are split.
  DType link_dtype = DType::kFloat32;
  // These two are for whom forms the steps; workers are not told. Whether a
  // prompt's chunks follow each other through the stages where the pipeline
  // would have bubbles, each without waiting for the one before to come back;
  // and the context at which they are about half as long as at none, as
  // attention makes each row cost twice as much. 0: all are as long.
  bool slicing = true;
  int32_t slice_context = 0;

  friend bool operator==(const Policy&, const Policy&) = default;
};

// Sets the keys in `text`: "key=value" pairs separated by commas, blanks or
// line ends ('#' begins a comment), or '@' and the name of a file of them.
//
//   w=0/50/50 c=auto h.disk=0.5 gbs=12 compress-kv=int4 overlap=off
//
// policy_keys.h has all keys and what may be their values.
// kInvalidArgument names the key.
absl::Status UpdatePolicy(absl::string_view text, Policy* policy);

// "gbs=64 ... w=0/50/50 c=auto ...": all keys, as UpdatePolicy takes them.
std::string PolicyText(const Policy& policy);

// The format of the policy's KV cache.
KvFormat KvFormatOf(const Policy& policy);

}  // namespace sluice
