#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/types.h"
#include "runtime/kernels/cuda/attention/attention_types.h"
#include "runtime/kv/batch_view.h"

// Kernels that apply positions and write new K and V to their pages.

namespace sluice {

// The angles of all positions: those of position p at p * half, in device
// memory. half is 0 without rotary embedding.
struct RotaryTable {
  const float* cos = nullptr;  // [positions, half]
  const float* sin = nullptr;
  int32_t half = 0;
};

// Turns `heads` heads of each row in place: head h of row r lies at q + r *
// stride + h * head_dim and is at positions[r]. Elements from 2 * half on are
// left alone.
absl::Status RotateRows(const RotaryTable& table, const int32_t* positions,
                        int32_t rows, int32_t heads, int32_t head_dim,
                        int64_t stride, float* q, cudaStream_t stream);

// Some neighbouring positions of a segment, all in one page.
struct KvRun {
  int32_t segment = 0;
  int32_t first = 0;  // within the segment
  int32_t count = 0;
};

// Cuts segments [first_segment, first_segment + count) into runs; `segment` of
// a run counts from first_segment. Returns the positions in the longest.
int32_t MakeKvRuns(const BatchView& batch, int32_t first_segment, int32_t count,
                   std::vector<KvRun>* runs);

struct KvAppendArgs {
  KvBlock block;
  int32_t num_kv_heads = 0;
  // The pointers are to device memory.
  std::byte* kv = nullptr;  // where the layer's pages begin
  const AttentionSegment* segments = nullptr;
  const int32_t* pages = nullptr;
  const KvRun* runs = nullptr;
  int32_t num_runs = 0;
  // K of head h of packed row r lies at k + r * stride + h * head_dim, before
  // positions are applied; V alike.
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t stride = 0;
  RotaryTable rotary;
};

// Writes K, with positions applied, and V of the runs' positions to their
// pages: bit for bit what StoreKv (runtime/kernels/cpu/attention.h) writes, but
// for the bits of NaN. No two runs may lie in the same page. `longest_run`:
// positions in the longest run.
absl::Status AppendKv(const KvAppendArgs& args, KvFormat format,
                      int32_t longest_run, cudaStream_t stream);

}  // namespace sluice
