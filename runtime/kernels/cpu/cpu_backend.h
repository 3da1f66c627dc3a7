#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "runtime/collective/collective.h"
#include "runtime/kernels/backend_parts.h"
#include "runtime/kernels/cpu/attention.h"
#include "runtime/kernels/cpu/gemm.h"
#include "runtime/kernels/device_checks.h"
#include "runtime/kv/batch_view.h"
#include "runtime/memory/work_buffer.h"

namespace sluice {

// The processor as compute device: GEMMs by oneDNN, all else by Highway,
// weights and pages used where they lie. Of BackendOptions::device it uses
// nothing but memory, for its work space. In float16 it computes no layers:
// beside a device that does, it embeds and attends. See Backend for the
// contract.
class CpuBackend : public Backend {
 public:
  static absl::StatusOr<BackendParts> Create(const DecoderSpec& spec,
                                             const BackendOptions& options);

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
  absl::Status Route(int layer, const PackedLayer& packed,
                     const BatchView& batch, const float* x,
                     int32_t at) override;
  absl::StatusOr<std::span<const int32_t>> RowsOfExperts() override;
  absl::Status RunExpert(int layer, int expert,
                         const PackedView& packed) override;
  absl::Status AddExperts(int layer, const BatchView& batch, int32_t at,
                          float* x) override;
  absl::Status FinalRows(const PackedView& packed,
                         std::span<const int32_t> rows_of_x, const float* x,
                         float* out) override;
  absl::Status HeadInput(const PackedView& packed,
                         std::span<const int32_t> rows_of_x, const float* x,
                         int32_t at) override;
  absl::Status HeadLogits(const PackedView& packed, int section,
                          int32_t rows) override;
  absl::Status TakeLogits(std::span<LogitRow> rows) override;
  AttentionRows attention_rows(int32_t slot) override {
    return {reinterpret_cast<std::byte*>(Qkv(slot)), qkv_width_ * sizeof(float),
            attention_[slot].as<std::byte>(),
            q_width_ * ElementBytes(options_.dtype)};
  }

 protected:
  // Makes all parts but the backend, and the engine that packs the weights.
  static absl::StatusOr<BackendParts> MakeParts(const DecoderSpec& spec,
                                                const BackendOptions& options,
                                                GemmEngine** gemm);
  // Computes with what MakeParts made, which must outlive it. With `own`, a
  // call whose weights, activations or pages do not lie there is refused with
  // kInternal.
  CpuBackend(const DecoderSpec& spec, const BackendOptions& options,
             const BackendParts& parts, GemmEngine* gemm,
             const Device* own = nullptr);
  absl::Status Initialize();

  ComputePool& pool() { return pool_; }
  const DeviceChecks& checks() const { return checks_; }
  // The leading rank's logits, float [head rows, vocab]: of no use to anybody
  // before HeadLogits().
  std::span<float> logits_space() const {
    return {logits_.as<float>(),
            static_cast<size_t>(options_.head_rows) * spec_.vocab_size};
  }

 private:
  // A part of a segment that one task works on.
  struct SegmentPart {
    int32_t segment;
    int32_t first;  // row (attention) or token (KV store) within the segment
    int32_t count;
  };

  // Returns a slot's q, k and v, float [rows, qkv_width_].
  float* Qkv(int32_t slot) {
    return qkv_.empty() ? wide_.as<float>() : qkv_[slot].as<float>();
  }
  const LayerLayout& LayoutOf(int layer, const PackedLayer& packed) const {
    return packed.dequantized ? weights_.dequantized() : weights_.layer(layer);
  }
  // Decodes a row of the embedding's table for a row of the batch: float
  // [hidden], with the bits of a table of numbers.
  void DecodeRow(const std::byte* codes, int32_t row, float* out);
  // Checks that a layer's weights and its activations lie where they should.
  absl::Status CheckCall(int layer, const PackedLayer& packed,
                         const BatchView& batch, const float* x) const;
  void Norm(const NormLayout& norm, const PackedView& packed, const float* x,
            DType dtype, void* out) const;
  // Writes the norm of each row to normed_; just converts if `norm` is null.
  void NormRows(const NormLayout* norm, const PackedView& packed,
                const float* x, int32_t rows);
  // Norms each head's q and k in rows of q, k and v, or those of all heads.
  void NormHeads(const LayerLayout& w, const PackedView& packed, int32_t rows,
                 float* qkv);
  absl::Status NormAllHeads(const LayerLayout& w, const PackedView& packed,
                            int32_t rows, float* qkv);
  // x = norm(x).
  void NormRowsInPlace(const NormLayout& norm, const PackedView& packed,
                       float* x, int32_t rows);
  void StoreKvOf(int layer, const BatchView& batch, int32_t first_segment,
                 int32_t count);
  void AttendOf(int layer, const BatchView& batch, int32_t first_segment,
                int32_t count);
  // What attention, or the MLP, gives is a * w^T + bias: on each rank, the
  // columns that are its own, and then all of them on all. It is added to x as
  // the block's norms say.
  absl::Status AddOutput(const MatrixLayout& w, const VectorLayout& bias,
                         const NormLayout& sum_norm,
                         const VectorLayout& output_norm,
                         const PackedView& packed, const void* a, int32_t rows,
                         float* x);
  // Computes what lies between the matrices of an MLP or an expert of rows of
  // normed_: columns of `inner`, of which the rank has some, and then all of
  // them on all, in wide_.
  absl::Status Inside(const MatrixLayout& up, const VectorLayout& bias,
                      const PackedView& packed, int32_t rows, int32_t inner,
                      ColumnRange columns, std::span<const size_t> bounds);
  // Begins what a mixture makes of rows with its shared expert, or with 0.
  absl::Status BeginMixed(const LayerLayout& w, const PackedView& packed,
                          int32_t rows, float* mixed);
  // Returns where a layer's norm of what its mixture makes is kept: weight and
  // bias, [2, hidden]. Those of neighbouring layers are in use together.
  float* MixtureNorm(int layer) {
    return mixed_.as<float>() +
           (options_.mixture_rows + 2 * int64_t{layer % 2}) * spec_.hidden_size;
  }
  // Brings the choices of all rows into the order of experts and rows.
  void SortChoices();
  absl::Status AddMlp(int layer, const PackedLayer& packed,
                      const BatchView& batch, float* x);
  // Tables of the angles that a layer's positions are turned by.
  struct Angles {
    const float* cos = nullptr;  // [max_model_len, half]
    const float* sin = nullptr;
    int32_t half = 0;  // 0: they are not
  };
  Angles AnglesOf(int layer) const;
  // Exchanges columns of rows of `width` elements, cut at `bounds`, which the
  // ranks have at `from`; nothing if there is one rank.
  absl::Status Gather(const std::byte* from, size_t from_stride, std::byte* to,
                      size_t to_stride, int32_t rows,
                      std::span<const size_t> bounds,
                      int to_rank = ColumnGather::kAllRanks);
  bool is_rank() const { return options_.tensor.ranks > 1; }

  const DecoderSpec spec_;
  const BackendOptions options_;
  const KvLayout kv_layout_;
  const PackedWeights& weights_;
  ComputePool& pool_;
  const DeviceChecks checks_;
  const TensorShard shard_;
  // Of the rank's heads.
  const int32_t q_width_;
  const int32_t kv_width_;
  const int32_t qkv_width_;  // of rows of q, k, v, and the heads' sinks
  const bool clamps_;        // gates (DecoderSpec::gate_limit and its kin)
  GemmEngine* const gemm_;   // packs the weights
  const ExchangeBounds bounds_;
  // Of each of the spec's rotaries [max_model_len, dim / 2].
  WorkBuffer rotary_cos_;
  WorkBuffer rotary_sin_;

  // The work space. Inputs of GEMMs have rows up to a multiple of kTileRows.
  WorkBuffer normed_;                  // CpuSpace::normed
  std::vector<WorkBuffer> attention_;  // per slot [rows, q_width] in dtype
  // float [rows, qkv_width_] if there is one slot, then all ranks' attention
  // and [rows, inner] in dtype
  WorkBuffer wide_;
  std::vector<WorkBuffer>
      qkv_;  // with more slots, each: float [rows, qkv_width_]
  // float [head group, vocab], or the rank's columns if it does not lead; last
  // stage
  WorkBuffer logits_;
  WorkBuffer routed_, mixed_;    // CpuSpace's, with mixtures
  MemoryCharge thread_scratch_;  // of gemm_ and of what follows
  std::vector<AttentionScratch> attention_scratch_;  // per thread
  std::vector<float> rotated_;  // per thread [kPageTokens, head_dim]
  std::vector<SegmentPart> parts_;
  // Of a mixture's rows, of which there are routed_rows_: the choices of each,
  // and those of each expert, which begin at begins_.
  std::vector<ExpertChoice> choices_;  // [mixture_rows, experts_per_token]
  std::vector<ExpertChoice> chosen_;   // [mixture_rows * experts_per_token]
  std::vector<int32_t> begins_;        // [experts + 1]
  std::vector<int32_t> counts_;        // [experts]
  std::vector<float> router_logits_;   // [max_rows, experts]
  int32_t routed_rows_ = 0;
  bool sorted_ = false;
};

}  // namespace sluice
