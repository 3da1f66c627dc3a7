#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types.h"
#include "runtime/kernels/cuda/attention/attention_types.h"
#include "runtime/kv/kv_layout.h"

// Attention over pages on the device: what the Attend of a CUDA backend
// launches, after rotary and the append of the new positions' K and V to their
// pages. Three kinds, each of which is planned first (sizes only: nothing is
// touched) and then launched, as often as one likes, with work space of the
// plan's size:
//
//   decode   one new token of each of many sequences; splits long contexts
//   sparse   the same, with the V of only the largest weights
//   prefill  several new tokens of each of some sequences
//
// Results depend on a sequence's own queries, keys and values and on the plan's
// splits only. Positions beyond a sequence's last are never looked at, whatever
// they hold. A score that is no number has no weight, and an infinite one makes
// a NaN, as on the CPU.
//
// With a dtype of 16 bits, formats but float32 and head sizes that are
// multiples of 8, products are taken on tensor cores: in decode with queries
// and weights in two parts, so that results differ from float32's by what a sum
// of floats does (unquantized) or by rounding K and V to half (quantized); in
// prefill with queries and weights rounded to bfloat16 (half, where K and V or
// codes are). All else is float32 arithmetic.

namespace sluice {

// The facts of a device that plans need.
struct AttentionDevice {
  int32_t processors = 0;   // streaming multiprocessors
  int32_t capability = 0;   // 10 * major + minor
  size_t shared_bytes = 0;  // that a block may ask for
};

// Returns the current device's facts, or an error of the CUDA runtime.
absl::StatusOr<AttentionDevice> CurrentAttentionDevice();

// The sizes that stay the same from step to step.
struct AttentionShape {
  KvLayout kv;
  int32_t num_heads = 0;
  DType dtype = DType::kFloat32;  // of the result, and of products
  float scale = 1;                // multiplies q.k
  float cap = 0;  // scores s become cap * tanh(s / cap); 0: they stay
  // DecoderSpec::alibi_heads, and the number, in the model, of the first head.
  int32_t alibi_heads = 0;
  int32_t first_head = 0;
  bool rounded_alibi = false;  // PositionKind::kRoundedAlibi
  // Fails with kInvalidArgument if sizes make no sense, with kUnimplemented if
  // heads have more than kMaxHeadDim elements.
  absl::Status Validate() const;
  int32_t group() const { return num_heads / kv.num_kv_heads; }
  // Returns whether products are taken on tensor cores.
  bool TensorCores() const;
};

// The data of a launch: all in device memory, and to be left alone until the
// stream has passed.
struct AttentionData {
  // Rows of q with positions applied: head h of packed row r at q + r *
  // q_stride + h * head_dim, unscaled. With tensor cores, q lies at a
  // multiple of 8 bytes and q_stride is even.
  const float* q = nullptr;
  int64_t q_stride = 0;
  // The result, [rows, num_heads, head_dim] in the shape's dtype; at a multiple
  // of 8 bytes with tensor cores.
  void* out = nullptr;
  // The layer's pages, at a multiple of 16 bytes.
  const std::byte* kv = nullptr;
  const AttentionSegment* segments = nullptr;
  const int32_t* pages = nullptr;  // the table that the segments point into
  int32_t window = 0;  // positions that a token sees, its own included; 0: all
  float scale = 1;     // times the shape's
};

struct DecodePlan {
  int32_t sequences = 0;
  int32_t splits = 1;
  int32_t pages_per_split = 0;
  int32_t chunk_heads = 0;
  int32_t chunks = 0;
  int32_t warps = 0;
  int32_t stages = 0;
  size_t shared_bytes = 0;
  // The bytes of work space, at a multiple of 16 bytes; may be 0.
  size_t workspace_bytes = 0;
};

// Plans for `sequences` segments of one token each, of which none attends more
// than `max_context` positions (a window counted as a whole). The plan takes no
// more than `workspace_limit` bytes of work space, of which any number will do.
absl::StatusOr<DecodePlan> PlanDecode(const AttentionShape& shape,
                                      const AttentionDevice& device,
                                      int32_t sequences, int32_t max_context,
                                      size_t workspace_limit = SIZE_MAX);

// Attends segments [0, plan.sequences) of data.segments. kInvalidArgument if
// the work space is missing or not aligned; else what Launch returns.
absl::Status LaunchDecode(const AttentionShape& shape,
                          const AttentionDevice& device, const DecodePlan& plan,
                          const AttentionData& data, void* workspace,
                          cudaStream_t stream);

struct SparsePlan {
  // All sequences, and how many of them have their scores kept at a time.
  int32_t sequences = 0;
  int32_t sequences_at_once = 0;
  int32_t max_context = 0;
  float sparsity = 1;
  DecodePlan scores;
  size_t workspace_bytes = 0;
};

// Plans decode attention that keeps the share `sparsity`, in (0, 1), of a
// token's positions (SparseCount in runtime/kernels/cpu/attention.h), those of
// largest score, of equal ones the first. Takes as many sequences at once as
// `workspace_limit` bytes allow: kResourceExhausted if that is not even one.
absl::StatusOr<SparsePlan> PlanSparse(const AttentionShape& shape,
                                      const AttentionDevice& device,
                                      int32_t sequences, int32_t max_context,
                                      float sparsity, size_t workspace_limit);

absl::Status LaunchSparse(const AttentionShape& shape,
                          const AttentionDevice& device, const SparsePlan& plan,
                          const AttentionData& data, void* workspace,
                          cudaStream_t stream);

struct PrefillPlan {
  // Rows (a token and a query head each, token by token) of a KV head that a
  // block takes. Segments are cut into tiles of so many.
  int32_t tile_rows = 0;
  int32_t warps = 0;
  int32_t stages = 0;
  size_t shared_bytes = 0;
};

// Plans prefill, which needs no work space.
absl::StatusOr<PrefillPlan> PlanPrefill(const AttentionShape& shape,
                                        const AttentionDevice& device);

// Attends segments [0, segments) of data.segments, of any number of tokens
// each. tile_begin, in device memory, is AttentionInputs's, whose last is
// `tiles`.
absl::Status LaunchPrefill(const AttentionShape& shape,
                           const AttentionDevice& device,
                           const PrefillPlan& plan, const AttentionData& data,
                           int32_t segments, const int32_t* tile_begin,
                           int32_t tiles, cudaStream_t stream);

}  // namespace sluice
