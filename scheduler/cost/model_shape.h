#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/types.h"

namespace sluice {

// What the planner knows of a decoder: sizes.
struct ModelShape {
  int32_t num_layers = 0;
  int32_t hidden = 0;
  int32_t embed = 0;  // width of the embedding; mostly that of hidden
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t intermediate = 0;
  int32_t vocab = 0;
  int32_t position_rows = 0;  // of a learned position table
  bool gated_mlp = true;
  bool tied_embeddings = false;

  int64_t query_width() const { return int64_t{heads} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
  // Weights of a layer's matrices: q, k, v, out; up, down and perhaps gate.
  int64_t layer_elements() const;
  // With the projections between embed and hidden, where these differ.
  int64_t head_elements() const {
    return int64_t{vocab} * embed +
           (embed == hidden ? 0 : int64_t{embed} * hidden);
  }
  int64_t embedding_elements() const;  // and with learned positions
  // Of layers [begin, end), with the embedding of the first and the head of
  // the last.
  int64_t stage_elements(LayerRange layers) const;
  // K and V of one position in one layer, parameters of groups included.
  double kv_bytes_per_position(KvFormat format) const;

  // kInvalidArgument names the size that makes no sense.
  absl::Status Check() const;
};

// Bytes of `elements` weights in a format; groups of 64 share two float16.
double WeightBytes(int64_t elements, DType dtype, WeightFormat format);

}  // namespace sluice
