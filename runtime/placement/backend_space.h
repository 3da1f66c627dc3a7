#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/types.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/placement/gpu_limits.h"
#include "runtime/placement/layer_layout.h"
#include "runtime/placement/tensor_shard.h"

// The work space of the backends, buffer by buffer: backends allocate it, plans
// count it.

namespace sluice {

// The parameters beside the model on which sizes of a backend's memory depend.
struct BackendShape {
  LayerRange layers;
  // The rank, if several compute these layers: sizes and layouts are its own.
  TensorRank tensor;
  DType dtype = DType::kFloat32;
  WeightFormat weight_format = WeightFormat::kFull;
  KvFormat kv_format = KvFormat::kFloat32;
  size_t kv_page_alignment = 64;  // of a page of one layer, in bytes
  // Share of the positions whose V a decoding row reads (1: all).
  float sparsity = 1;
  int32_t max_rows = 0;  // rows in a micro-batch
  // Rows that share a pass over a mixture's experts, of a model with mixtures.
  int64_t mixture_rows = 0;
  int32_t head_rows = 128;    // rows that go through the head at a time
  int32_t max_model_len = 0;  // positions in a sequence
  int32_t threads = 1;        // the calling one included
  // Micro-batches whose rows may be between ProjectQkv and ProjectOut at a
  // time: BatchView::attention_slot is below it.
  int32_t attention_slots = 1;

  TensorShard shard(const DecoderSpec& spec) const {
    return TensorShard::Of(spec, weight_format, tensor);
  }
};

// The layouts of a backend's packed weights, the same for all backends of one
// shape that follow the same rules. Without the first layer, and on
// ranks that do not lead, the embedding has 0 bytes; without the last layer the
// head has no sections.
struct PackedLayouts {
  EmbeddingLayout embedding;
  // Layers may keep codes of their own: the layouts that layers of the model
  // have, and each one's.
  std::vector<LayerLayout> layers;
  std::vector<int32_t> layout_of;  // [num_layers]
  LayerLayout dequantized;         // a layer in full, if any layer is quantized
  std::vector<HeadSectionLayout> head;

  // `layer` counts from the model's first.
  const LayerLayout& layer(int layer) const { return layers[layout_of[layer]]; }

  static PackedLayouts Of(const DecoderSpec& spec, const BackendShape& shape,
                          const PanelRules& rules);
  // Whether some layer has a quantized matrix.
  bool quantized() const;
  // Whether some layer has a matrix in the checkpoint's codes.
  bool coded() const;
  // Calls `visit` for each matrix, those of `dequantized` included, until it
  // gives an error.
  absl::Status ForEachMatrix(
      absl::FunctionRef<absl::Status(MatrixLayout* w)> visit);
  // Returns all matrices of GEMMs but those of `dequantized`.
  std::vector<MatrixLayout> Matrices() const;
};

// A GEMM's largest tile, and the rows that must be readable in the input of
// a GEMM of `rows`: whole tiles, and what oneDNN's kernels for float32 on
// AVX2 read past the last row: they take 24 at a time.
inline constexpr int32_t kGemmTileRows = 128;
inline constexpr int32_t ReadableRows(int32_t rows) {
  return (rows + kGemmTileRows - 1) / kGemmTileRows * kGemmTileRows + 32;
}

// Work space of attention on one thread, part by part (AttentionScratch): each
// begins on a cache line.
inline constexpr int32_t kAttentionRows = 32;      // in one call
inline constexpr int32_t kAttentionGroupRows = 8;  // computed at once, at most
inline constexpr int32_t kAttentionSumLanes = 16;
struct AttentionScratchSizes {
  // `sparse_context`: positions that sparse attention may attend; or 0.
  AttentionScratchSizes(int32_t head_dim, int32_t sparse_context);

  int32_t stride;        // of rows: whole vectors, of any processor, and groups
  int32_t groups;        // of a head
  int32_t score_stride;  // whole pages, the first begun in the middle
  std::array<size_t, 15> parts;
  size_t bytes;  // with what aligns the first part
};

// An expert that a row takes, and the row that takes it, with what its output
// is multiplied by.
struct ExpertChoice {
  int32_t index = 0;  // of the expert, or of the row
  float weight = 0;
};
// Returns the bytes of the choices of a mixture's rows, by row and by expert,
// and of a micro-batch's logits; 0 without mixtures.
size_t ExpertChoicesBytes(const DecoderSpec& spec, int64_t rows,
                          int32_t max_rows);

// The work space of CpuBackend, in bytes; a part may be each attention slot's.
// Inputs of GEMMs have ReadableRows(max_rows).
struct CpuSpace {
  // [rows, max(hidden, embed_dim)] in the dtype; where outputs are normed,
  // also float [rows, hidden], and where all heads are together, float [rows,
  // heads + KV heads].
  size_t normed;
  // Of the rank's heads: each slot's [rows, q] in the dtype, and its float
  // [rows, q + 2 kv]; 0 with one slot.
  size_t attention;
  size_t qkv;
  // The max of one slot's qkv, and [rows, max(inner, embed_dim)] in the dtype;
  // with several ranks also [rows, q] of all heads.
  size_t wide;
  // float [head_rows, vocab], of a rank that does not lead only its columns; 0
  // without the head.
  size_t logits;
  size_t rotary;  // of sines and of cosines [max_model_len, dim / 2] of each
  // Of mixtures, or 0: their rows [mixture_rows, hidden] in the dtype; and
  // float what they make of these, and a norm's weight and bias [2, hidden].
  size_t routed, mixed;
  // The threads' own memory, on the heap: that of GEMMs, and all of it.
  size_t gemm_threads;
  size_t threads;  // with the choices of a mixture's rows

  CpuSpace(const DecoderSpec& spec, const BackendShape& shape);
};

// The work space of CudaBackend, in bytes.
struct GpuSpace : GpuLimits {
  size_t normed, attention, qkv, rotary;  // as CpuSpace's, of max_rows
  // The max of one slot's float [rows, q + 2 kv]; the result of an MLP's first
  // GEMM: [rows, up] in the dtype, or float for few rows; and [head_rows,
  // embed_dim] in the dtype.
  size_t wide;
  // The bytes of [rows, the rank's inner] in the dtype, for a gated MLP or for
  // few rows of quantized GEMMs; or 0.
  size_t inner;
  // With several ranks, what they gather of attention and of an MLP's inside:
  // [rows, max(q, inner)] in the dtype; or 0.
  size_t gathered;
  // Room for all ranks' parts of an exchange, each as large as the greatest.
  size_t exchange;
  // The head's results on the device and on the host; 0 without the head.
  size_t logits, answers, host_answers;
  // The space for partial results that GEMMs and attention share.
  size_t workspace;
  size_t dequantized, counters;  // for quantized GEMMs; or 0
  // The data that a step's kernels read, on the device and as much on the host:
  // each of kRingParts parts of the ring, and the data of recorded steps.
  size_t upload_part;
  size_t step_data;

  // Returns the columns of a quantized matrix that are dequantized at a time
  // into `bytes`: whole panels.
  static int32_t DequantizedColumns(const MatrixLayout& w, size_t bytes,
                                    DType dtype);
  // Attention is planned for whole steps of positions, so that plans stay the
  // same for a while.
  static int32_t PlannedContext(int32_t positions);
  // Return the bytes uploaded for a segment of `tokens` that ends at `end`, for
  // a batch beside its segments, and at most at a time.
  static size_t SegmentUpload(int32_t tokens, int32_t end);
  static size_t BatchUpload();
  static size_t AttentionUpload(int32_t max_rows, int32_t max_context);

  GpuSpace(const DecoderSpec& spec, const BackendShape& shape,
           const PackedLayouts& layouts);
};

}  // namespace sluice
