#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/kv/batch_view.h"
#include "runtime/sample/sample_token.h"
#include "runtime/weights/packed_view.h"

// Few files include this one, and it includes few: an edit of the interface
// recompiles little.

namespace sluice {

// A backend does a stage's arithmetic. There is one call per part of a layer
// and micro-batch, or larger, so that what lies inside can be fused.
//
// A backend owns work space only. Weights come as units of PackedWeights, shown
// for the time of a call (PackedView), K and V as pages (SegmentView). x is the
// residual stream of a micro-batch, float32 [rows, hidden].
//
// Computing calls may return before they are done, on backends with memory of
// their own: they are done in order, each as of what memory holds by then, and
// what was shown in host memory (the batch, rows_of_x) has been read. Results
// are there for later calls; for others, and before anybody else writes to
// memory that a call reads, after Finish().
//
// Of a stage of several ranks (TensorRank) each has a backend of its own, with
// its share of the weights and KV heads, and all of x, the same on all. Their
// calls exchange columns (Collective), and so have to be the same and in the
// same order, but for those of Attend and of HeadLogits, of which there may be
// more or fewer.
//
// A backend is confined to one thread, but for its own threads. After an error
// in a computing call, x and the KV pages of the batch are undefined.
class Backend {
 public:
  virtual ~Backend() = default;

  // Quantized weights can be dequantized once for several micro-batches: from a
  // layer's packed unit into one of PackedWeights::DequantizedLayerBytes(),
  // which the computing calls then take with `dequantized` set. `layer` counts
  // from the model's first, as in all calls.
  struct PackedLayer {
    PackedView view;
    bool dequantized = false;
  };
  virtual absl::Status DequantizeLayer(int layer, const PackedView& packed,
                                       std::byte* out) = 0;

  // x = embedding of the batch's tokens, positions included if they are
  // learned. Tokens must be within the vocabulary.
  virtual absl::Status Embed(const PackedView& packed, const BatchView& batch,
                             float* x) = 0;
  // Adds attention to x, as the block's norms say (DecoderSpec), in three
  // steps. The middle one may be called for the segments in any order and
  // grouping, once for each; their K and V need to be in place only then. It
  // writes the new positions' K and V into the segments' pages first.
  virtual absl::Status ProjectQkv(int layer, const PackedLayer& packed,
                                  const BatchView& batch, const float* x) = 0;
  virtual absl::Status Attend(int layer, const BatchView& batch,
                              int32_t first_segment, int32_t count) = 0;
  virtual absl::Status ProjectOut(int layer, const PackedLayer& packed,
                                  const BatchView& batch, float* x) = 0;
  // Adds the MLP to x, of a layer that is no mixture. In a parallel block,
  // which adds both to the same x, ProjectOut has done so.
  virtual absl::Status Mlp(int layer, const PackedLayer& packed,
                           const BatchView& batch, float* x) = 0;

  // A mixture (MixtureSpec) takes three steps, so that rows of several
  // micro-batches share one pass over its experts. Route() norms rows of x,
  // chooses their experts, and makes them rows [at, at + batch.rows) of the
  // mixture's, of which there are BackendShape::mixture_rows; those before are
  // routed already. It may be called for a layer while rows of the one before,
  // from `at` + batch.rows on, wait for AddExperts().
  virtual absl::Status Route(int layer, const PackedLayer& packed,
                             const BatchView& batch, const float* x,
                             int32_t at) {
    return NoMixtures();
  }
  // Returns how many of the mixture's rows have chosen each expert, in host
  // memory, until the next Route(). Waits for that, as Finish().
  virtual absl::StatusOr<std::span<const int32_t>> RowsOfExperts() {
    return NoMixtures();
  }
  // Computes an expert for all rows that have chosen it. `packed` shows the
  // expert alone. Called for one expert after the other, in the order of their
  // numbers; those that no row has chosen may be left out.
  virtual absl::Status RunExpert(int layer, int expert,
                                 const PackedView& packed) {
    return NoMixtures();
  }
  // Adds to x what the mixture has made of rows [at, at + batch.rows).
  virtual absl::Status AddExperts(int layer, const BatchView& batch, int32_t at,
                                  float* x) {
    return NoMixtures();
  }

  // The data between the three steps of attention, for attention elsewhere
  // (another backend's Attend, on a copy of the rows): the q, k and v of each
  // row of the micro-batch in `slot`, before positions are applied, and the
  // logits of the heads' sinks, if there are any; and what attention gave it.
  // It lies where the backend computes, and lasts as long.
  struct AttentionRows {
    std::byte* qkv = nullptr;  // float [rows, q + 2 kv + sinks]
    size_t qkv_bytes = 0;      // of a row
    std::byte* out = nullptr;  // [rows, q], in the dtype
    size_t out_bytes = 0;      // of a row
  };
  virtual AttentionRows attention_rows(int32_t slot) = 0;

  // Logits take three steps, so that rows of several micro-batches can share
  // one pass over the head. HeadInput() makes some rows of x rows [at, at + n)
  // of the head's input, of which there are BackendOptions::head_rows. Nothing
  // else may be computed until TakeLogits(). `packed` is the head's first
  // section.
  virtual absl::Status HeadInput(const PackedView& packed,
                                 std::span<const int32_t> rows_of_x,
                                 const float* x, int32_t at) = 0;
  // Computes a section's part of the logits of input rows [0, rows). Called for
  // one section after the other, each with its packed unit.
  virtual absl::Status HeadLogits(const PackedView& packed, int section,
                                  int32_t rows) = 0;
  // A row of logits for TakeLogits(), and what it gives for the row.
  struct LogitRow {
    // A request that the backend may answer; none: the host wants the logits.
    std::optional<SampleRequest> request;
    // TakeLogits() sets either the answer, or the logits: [vocab] in host
    // memory that the caller may overwrite, until the next computing call.
    TokenSample sample;
    std::span<float> logits;
    bool sampled() const { return logits.empty(); }
  };
  // Takes the logits of input rows [0, rows.size()), after the last section. Of
  // several ranks, only the leading one may: it has what all have computed.
  // Brings those that the host wants; a backend whose logits are the host's
  // gives all. Waits for what it gives, as Finish().
  virtual absl::Status TakeLogits(std::span<LogitRow> rows) = 0;

  // Gives rows of x after the final norm, float32 [rows_of_x.size(), hidden],
  // in host memory. `packed` is the head's first section. Leaves the head's
  // input alone, and may be called between HeadInput() and HeadLogits(). Ranks
  // exchange nothing for it. Waits for what it gives, as Finish().
  virtual absl::Status FinalRows(const PackedView& packed,
                                 std::span<const int32_t> rows_of_x,
                                 const float* x, float* out) = 0;

  // Begins a step's layers as one, for steps all of whose weights, pages and
  // residual streams stay on the device, where they were in the step before:
  // what the calls from ProjectQkv to Mlp compute is then told by the batches
  // (but for where their pages begin) and by where their residual streams lie.
  //
  // Called before the first of these calls. True: they have been begun, and the
  // caller leaves them out. False: the caller makes them, in the order of all
  // such steps, with one Attend() for a batch and without a Finish() between
  // them, and then calls EndLayers().
  virtual absl::StatusOr<bool> ReplayLayers(std::span<const BatchView> batches,
                                            std::span<float* const> x) {
    return false;
  }
  virtual absl::Status EndLayers() { return absl::OkStatus(); }

  // Waits for all that computing calls have begun, and says what went wrong.
  virtual absl::Status Finish() { return absl::OkStatus(); }

 private:
  static absl::Status NoMixtures() {
    return absl::UnimplementedError("this backend computes no mixtures");
  }
};

}  // namespace sluice
