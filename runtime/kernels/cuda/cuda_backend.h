#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/collective/collective.h"
#include "runtime/kernels/backend_parts.h"
#include "runtime/kernels/cuda/attention/batch_attention.h"
#include "runtime/kernels/cuda/device/upload_ring.h"
#include "runtime/kernels/cuda/gemm/packed_gemm.h"
#include "runtime/kernels/cuda/sampling.h"
#include "runtime/kernels/cuda/step_graphs.h"
#include "runtime/kernels/device_checks.h"
#include "runtime/memory/device.h"
#include "runtime/memory/host_buffer.h"

namespace sluice {

// A GPU as compute device: GEMMs by cuBLASLt, all else by the kernels beside
// this file. See Backend for the contract, and layer by layer CpuBackend for
// what is computed.
//
// Computing calls put their work into one stream and return; what they are told
// of a batch is copied at once. They wait only where the device is far behind
// (UploadRing), or for the first GEMM of a shape, of which several
// algorithms are timed (CublasGemm), and for what TakeLogits gives. Tokens
// are sampled on the device, with the host's random numbers, where that takes
// no more than a SampleRequest says: the logits of a large vocabulary take the
// copy stream as long as a step takes.
//
// Memory is BackendOptions::device's, taken at once: activations between the
// calls, work space, the ring, and scratch memory for quantized matrices.
class CudaBackend : public Backend {
 public:
  // The backend computes in a stream of the device's, which outlives it.
  struct Place {
    int ordinal = 0;
    cudaStream_t stream = nullptr;
  };
  // Fails with kInvalidArgument without a device, with kUnimplemented for what
  // kernels cannot do, or with kResourceExhausted.
  static absl::StatusOr<BackendParts> Create(const DecoderSpec& spec,
                                             const BackendOptions& options,
                                             const Place& place);
  ~CudaBackend() override;

  absl::Status DequantizeLayer(int layer, const PackedView& packed,
                               std::byte* out) override;
  absl::Status Embed(const PackedView& packed, const BatchView& batch,
                     float* x) override;
  absl::Status ProjectQkv(int layer, const PackedLayer& packed,
                          const BatchView& batch, const float* x) override;
  absl::Status Attend(int layer, const BatchView& batch, int32_t first_segment,
                      int32_t count) override;
  absl::Status ProjectOut(int layer, const PackedLayer& packed,
                          const BatchView& batch, float* x) override;
  absl::Status Mlp(int layer, const PackedLayer& packed, const BatchView& batch,
                   float* x) override;
  AttentionRows attention_rows(int32_t slot) override;
  absl::Status FinalRows(const PackedView& packed,
                         std::span<const int32_t> rows_of_x, const float* x,
                         float* out) override;
  absl::Status HeadInput(const PackedView& packed,
                         std::span<const int32_t> rows_of_x, const float* x,
                         int32_t at) override;
  absl::Status HeadLogits(const PackedView& packed, int section,
                          int32_t rows) override;
  absl::Status TakeLogits(std::span<LogitRow> rows) override;
  // Steps of one new token each are recorded as CUDA graphs when they come
  // again and again.
  absl::StatusOr<bool> ReplayLayers(std::span<const BatchView> batches,
                                    std::span<float* const> x) override;
  absl::Status EndLayers() override;
  absl::Status Finish() override;

 private:
  CudaBackend(const DecoderSpec& spec, const BackendOptions& options,
              const Place& place, const AttentionDevice& device,
              const BackendParts& parts);
  absl::Status Initialize(ComputePool& pool);
  absl::Status MakeRotaryTable(const GpuSpace& space, ComputePool& pool);
  absl::Status MakeHead(const GpuSpace& space);
  absl::Status MakeAttention(const GpuSpace& space);
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes) {
    return options_.device->Allocate("workspace", bytes);
  }
  // Makes the device the calling thread's.
  absl::Status Enter() const;
  // Begins to copy to the host the logits that have no request.
  absl::Status CopyLogits(std::span<LogitRow> rows);
  // Returns what a recorded step depends on; empty if it cannot be recorded.
  StepGraphs::Key KeyOf(std::span<const BatchView> batches,
                        std::span<float* const> x) const;
  // Brings what kernels are told of the batches to where recorded steps look
  // for it. False if there is no room.
  absl::StatusOr<bool> BringStepData(std::span<const BatchView> batches,
                                     const StepGraphs::Key& key);
  // Cleans up after a recording, however it ends.
  void LeaveRecording();

  // Returns a slot's q, k and v, float [rows, q + 2 kv].
  float* Qkv(int32_t slot) const {
    return qkv_.empty() ? wide_.as<float>() : qkv_[slot].as<float>();
  }
  const LayerLayout& LayoutOf(int layer, const PackedLayer& packed) const {
    return packed.dequantized ? weights_.dequantized() : weights_.layer(layer);
  }
  absl::Status CheckCall(int layer, const PackedLayer& packed,
                         const BatchView& batch, const float* x) const;
  PackedGemm::Call GemmOf(const MatrixLayout& w, const PackedView& packed,
                          int32_t rows, const void* x) const {
    return {.w = &w, .packed = packed, .rows = rows, .x = x};
  }
  // Writes the norm of rows of x to `out` in `dtype`; just converts if `norm`
  // is null. `rows_of_x` is as in NormRowsArgs.
  absl::Status Norm(const NormLayout* norm, const PackedView& packed,
                    const float* x, const int32_t* rows_of_x, int32_t rows,
                    DType dtype, void* out) const;
  // Exchanges columns of rows that the ranks have at `from`; nothing if there
  // is one rank.
  absl::Status Gather(const void* from, size_t from_stride, void* to,
                      size_t to_stride, int32_t rows,
                      std::span<const size_t> bounds,
                      int to_rank = ColumnGather::kAllRanks);
  // Norms the q and k of all heads together.
  absl::Status NormAllHeads(const LayerLayout& w, const PackedView& packed,
                            int32_t rows, float* qkv);
  // What attention, or the MLP, gives is a w^T + bias: on each rank, the
  // columns that are its own, and then all of them on all. It is added to x as
  // the block's norms say.
  absl::Status AddOutput(PackedGemm::Call gemm, const VectorLayout& bias,
                         const NormLayout& sum_norm,
                         const VectorLayout& output_norm, float* x);
  absl::Status AddMlp(int layer, const PackedLayer& packed,
                      const BatchView& batch, float* x);
  bool is_rank() const { return options_.tensor.ranks > 1; }
  // Returns act(x w_up^T + bias), gated or plain, with x in normed_: [rows, the
  // rank's intermediate] in the dtype. REQUIRES: the rank has some of it.
  absl::StatusOr<const void*> MlpUp(const LayerLayout& w,
                                    const PackedView& packed, int32_t rows);

  const DecoderSpec spec_;
  const BackendOptions options_;
  const Place place_;
  const KvLayout kv_layout_;
  const DeviceChecks checks_;
  const TensorShard shard_;
  const ExchangeBounds bounds_;
  // Of the rank's heads.
  const int32_t q_width_;
  const int32_t kv_width_;
  const AttentionDevice device_;
  const PackedWeights& weights_;
  ComputePool& pool_;

  // Of each of the spec's rotaries [max_model_len, dim / 2].
  DeviceBuffer rotary_cos_;
  DeviceBuffer rotary_sin_;
  DeviceBuffer normed_;  // GpuSpace::normed
  std::vector<DeviceBuffer>
      attention_out_;  // per slot [rows, q_width] in dtype
  // Holds float [rows, q + 2 kv] if there is one slot; then what the first GEMM
  // of an MLP gives: [rows, up] in dtype, or float of few rows; then [head
  // rows, embed_dim] in dtype.
  DeviceBuffer wide_;
  std::vector<DeviceBuffer> qkv_;  // with more slots, each: [rows, q + 2 kv]
  // MlpUp()'s result, [rows, intermediate] in dtype, of a gated MLP, or of few
  // rows of quantized GEMMs; other results are in wide_.
  DeviceBuffer inner_;
  // With several ranks: what they gather of attention and of an MLP's inside,
  // and room for exchanges.
  DeviceBuffer gathered_;
  DeviceBuffer exchange_;
  // The last stage's logits, [head rows, vocab], and as many answers; on the
  // host, those rows that it wants. Of a rank that does not lead, its columns
  // of the logits.
  DeviceBuffer logits_;
  DeviceBuffer answers_;
  HostBuffer host_logits_;
  HostBuffer host_answers_;
  std::vector<RowSample> samples_;  // on their way to the ring
  DeviceBuffer workspace_;          // for what is computed at the time
  std::unique_ptr<UploadRing> ring_;
  std::unique_ptr<PackedGemm> gemm_;
  std::optional<BatchAttention> attention_;
  std::vector<int32_t> numbers_;  // on their way to the ring

  // Recorded steps, and their batches' data: on the host, on its way, and on
  // the device, in the same places for all steps of a key.
  StepGraphs graphs_;
  HostBuffer step_host_;
  DeviceBuffer step_data_;
  cudaEvent_t step_copied_ = nullptr;
  std::vector<UploadRing::Placed> placed_;
};

}  // namespace sluice
