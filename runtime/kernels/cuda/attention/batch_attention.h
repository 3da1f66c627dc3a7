#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/kernels/cuda/attention/attention.h"
#include "runtime/kernels/cuda/attention/attention_inputs.h"
#include "runtime/kernels/cuda/attention/kv_append.h"
#include "runtime/kernels/cuda/device/upload_ring.h"
#include "runtime/kv/batch_view.h"

namespace sluice {

// The work of a CUDA backend for a micro-batch between its projections:
// positions, the new K and V to their pages, attention. What kernels are told
// of the segments is uploaded once and found again by the layers that follow.
// Used by one thread.
class BatchAttention {
 public:
  struct Options {
    AttentionShape shape;
    AttentionDevice device;
    // Share of its positions whose V a single new token reads (1: all).
    float sparsity = 1;
    // Both outlive this; the ring brings GpuSpace::AttentionUpload() at a time.
    UploadRing* ring = nullptr;
    // Device memory at a multiple of 16 bytes, WorkspaceBytes() of it, that
    // nothing else on the stream needs across a call.
    void* workspace = nullptr;
    size_t workspace_bytes = 0;
    cudaStream_t stream = nullptr;
  };
  // What layers differ in: positions that a token sees, 0 for all, and how they
  // are rotated.
  struct Layer {
    int32_t window = 0;
    float scale = 1;  // times the shape's
    RotaryTable rotary;
  };
  // Fails with the errors of PlanPrefill.
  static absl::StatusOr<BatchAttention> Create(const Options& options);

  // Returns what attention needs at least, or as much as is worth having, for
  // sequences of up to `max_context` positions in micro-batches of up to
  // `max_rows` rows. The errors of the plans.
  static absl::StatusOr<size_t> WorkspaceBytes(const AttentionShape& shape,
                                               const AttentionDevice& device,
                                               float sparsity, int32_t max_rows,
                                               int32_t max_context);

  // Attends segments [first, first + count), once for each: turns their rows
  // of q in place and writes their K and V to the pages. `qkv`: float [rows, q
  // + 2 kv], before positions are applied; `out`: [rows, q] in the shape's
  // dtype. Errors as of FillAttentionInputs and of launches.
  absl::Status Attend(const BatchView& batch, int32_t first, int32_t count,
                      const Layer& layer, float* qkv, void* out);

  // Returns what Attend of all segments uploads, of any layer, for a batch of
  // one new token each whose pages lie in one arena; empty if that takes
  // several parts. Batches of as many segments have parts that lie alike, so
  // that what is launched for one of them is right for another, too, if
  // GpuSpace::PlannedContext() is the same.
  absl::StatusOr<std::span<const std::byte>> UploadOf(const BatchView& batch);
  // Returns an upper bound of UploadOf() for segments of up to `positions`.
  static size_t UploadBound(int32_t segments, int32_t positions);

 private:
  // The beginnings of the parts of what is uploaded.
  struct Places {
    size_t segments, pages, runs, positions, decode, prefill, tile_begin;
  };

  BatchAttention(const Options& options, const PrefillPlan& prefill)
      : options_(options), prefill_(prefill) {}
  // Returns how many segments from `first` on can be uploaded at a time.
  int32_t Together(const BatchView& batch, int32_t first, int32_t count) const;
  absl::Status AttendPart(const BatchView& batch, int32_t first, int32_t count,
                          const Layer& layer, float* qkv, void* out);
  absl::Status AttendDecode(const AttentionData& data);
  // Prepares what is to be uploaded of these segments, in content_.
  absl::StatusOr<Places> Prepare(const BatchView& batch, int32_t first,
                                 int32_t count, int32_t window);
  Places Collect();
  template <typename T>
  size_t Add(const std::vector<T>& values);

  Options options_;
  PrefillPlan prefill_;
  AttentionInputs batch_;
  std::vector<KvRun> runs_;
  std::vector<int32_t> positions_;
  std::vector<std::byte> content_;
  int32_t longest_run_ = 0;
  int32_t first_row_ = 0;
  std::vector<SegmentView> segments_;  // for UploadOf
};

}  // namespace sluice
