#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/kernels/backend.h"
#include "runtime/kernels/cpu/attention.h"
#include "runtime/kernels/cpu/compute_pool.h"
#include "runtime/kernels/cpu/gemm.h"
#include "runtime/kernels/cpu/layer_weights.h"
#include "runtime/kv/kv_arena.h"

namespace sluice {

// The processor as compute device: products by oneDNN, all else by Highway,
// weights used where they lie in RAM. See Backend for the contract.
class CpuBackend : public Backend {
 public:
  static absl::StatusOr<std::unique_ptr<Backend>> Create(
      const DecoderSpec& spec, const Options& options);

  absl::StatusOr<uint64_t> EmbeddingBytes() override;
  absl::StatusOr<uint64_t> LayerBytes() override;
  absl::StatusOr<uint64_t> HeadBytes() override;
  absl::Status LoadEmbedding(const TensorSource& source,
                             LoadProgress progress) override;
  absl::Status LoadLayer(int layer, const TensorSource& source,
                         LoadProgress progress) override;
  absl::Status LoadHead(const TensorSource& source,
                        LoadProgress progress) override;
  uint64_t KvPageBytes() const override;
  absl::Status ReserveKv(int64_t num_pages) override;
  absl::Status Embed(const BatchView& batch, float* x) override;
  absl::Status Attention(int layer, const BatchView& batch, float* x) override;
  absl::Status Mlp(int layer, const BatchView& batch, float* x) override;
  absl::Status Head(std::span<const int32_t> rows_of_x, const float* x,
                    LogitsSink sink) override;
  void ParallelFor(int num_tasks,
                   absl::FunctionRef<void(int, int)> body) override {
    pool_.ParallelFor(num_tasks, body);
  }

 private:
  // A part of a segment that one task works on.
  struct SegmentPart {
    int32_t segment;
    int32_t first;  // row (attention) or token (KV store) within the segment
    int32_t count;
  };

  CpuBackend(const DecoderSpec& spec, const Options& options);
  absl::Status Initialize();
  // Rows of the position table that may be looked up.
  int64_t PositionRows() const;

  void Norm(const NormWeights& weights, const float* x, DType dtype,
            void* out) const;
  // Norm of each row into normed_; plain conversion if `weights` is null.
  void NormRows(const NormWeights* weights, const float* x, int32_t rows);
  // x = norm(x).
  void NormRowsInPlace(const NormWeights& weights, float* x, int32_t rows);
  void StoreBatchKv(int32_t layer, const BatchView& batch);
  void AttendBatch(int32_t layer, const BatchView& batch);
  // x += a * w^T + bias.
  absl::Status MultiplyAdd(const PackedMatrix& w, const HostBuffer& bias,
                           const void* a, int32_t rows, float* x);

  const DecoderSpec spec_;
  const Options options_;
  const KvLayout kv_layout_;
  const int32_t q_width_;
  const int32_t kv_width_;
  ComputePool pool_;
  std::unique_ptr<GemmEngine> gemm_;
  std::unique_ptr<WeightLoader> loader_;

  EmbeddingWeights embedding_;
  std::vector<LayerWeights> layers_;
  HeadWeights head_;
  HostBuffer rotary_cos_;  // [max_model_len, rotary.dim / 2]
  HostBuffer rotary_sin_;
  std::unique_ptr<KvArena> kv_;

  // Work space. Inputs of products have rows up to a multiple of kTileRows.
  HostBuffer normed_;     // [rows, max(hidden, embed_dim)] in dtype
  HostBuffer attention_;  // [rows, q_width] in dtype
  HostBuffer wide_;       // float [rows, q + 2 kv], then [rows, inner] in dtype
  HostBuffer logits_;     // float [head group, vocab]; last stage
  std::vector<AttentionScratch> attention_scratch_;  // per thread
  std::vector<float> rotated_;  // per thread [kPageTokens, head_dim]
  std::vector<SegmentPart> parts_;
};

}  // namespace sluice
