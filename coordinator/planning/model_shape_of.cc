#include "coordinator/planning/model_shape_of.h"

namespace sluice {

ModelShape ShapeOf(const DecoderSpec& spec) {
  ModelShape shape;
  shape.num_layers = spec.num_layers;
  shape.hidden = spec.hidden_size;
  shape.embed = spec.embed_dim;
  shape.heads = spec.num_heads;
  shape.kv_heads = spec.num_kv_heads;
  shape.head_dim = spec.head_dim;
  shape.intermediate = spec.intermediate_size;
  shape.vocab = spec.vocab_size;
  if (spec.positions == PositionKind::kLearned) {
    shape.position_rows = spec.max_positions + spec.position_offset;
  }
  shape.gated_mlp = spec.gated_mlp;
  shape.tied_embeddings = spec.tied_embeddings;
  return shape;
}

}  // namespace sluice
