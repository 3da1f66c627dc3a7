#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/model/decoder_spec.h"
#include "runtime/model/families/family.h"
#include "runtime/model/layer_weights.h"

namespace sluice {

// One weight that a model of this description must have, and where a checkpoint
// has it.
struct TensorRef : TensorSlice {
  TensorRole role = TensorRole::kQWeight;
  std::vector<int64_t> shape;  // of the weight
  int layer = 0;               // of a layer's weights
  int expert = 0;              // of an expert's

  // Returns the shape of the tensor in the checkpoint.
  std::vector<int64_t> tensor_shape() const {
    std::vector<int64_t> whole = shape;
    if (tensor_rows > 0) whole[0] = tensor_rows;
    if (transposed && whole.size() == 2) std::swap(whole[0], whole[1]);
    if (by_head) whole = {whole[0] / head_rows, head_rows};
    if (stack > 0) whole.insert(whole.begin(), stack);
    return whole;
  }
  // Returns the elements of the tensor that lie before those of its part in the
  // stack.
  int64_t first_element() const {
    if (in_stack == 0) return 0;
    int64_t elements = in_stack;
    for (const int64_t n : shape) elements *= n;
    return tensor_rows > 0 ? elements / shape[0] * tensor_rows : elements;
  }
  // Returns the weights, each of a tensor of its own, of which this one is made
  // one after the other: itself, but with tensor_each_head those of the heads.
  std::vector<TensorRef> Tensors() const;
};

bool IsBias(TensorRole role);

// In the order of WeightsOf, an expert's weights after those of the one before.
std::vector<TensorRef> LayerTensors(const DecoderSpec& spec, int layer);
// Leaves out all experts but [first_expert, end_expert).
std::vector<TensorRef> LayerTensors(const DecoderSpec& spec, int layer,
                                    int first_expert, int end_expert);
std::vector<TensorRef> EmbeddingTensors(const DecoderSpec& spec);
// With tied embeddings kHead names the embedding matrix.
std::vector<TensorRef> HeadTensors(const DecoderSpec& spec);

// Returns a text that is another one if a weight is made of other rows, or made
// otherwise of them.
std::string BindingText(const DecoderSpec& spec);

}  // namespace sluice
