#pragma once

#include <cstdint>
#include <string>

#include "runtime/model/checkpoint/tensor_names.h"

namespace sluice {

// What the names and the order of rows in a GGUF file depend on.
struct GgufNaming {
  std::string architecture;  // metadata "general.architecture"
  int64_t head_dim = 0;      // elements of a query head
  int64_t experts = 0;       // of a layer
};

// Returns where a GGUF file has the weight that `ref` describes in the terms of
// its family's own checkpoints: the name that llama.cpp gives the tensor
// (src/llama-arch.cpp), and what its converters changed. Q and K of llama's
// kind have the pairs that are rotated side by side; norms of Gemma have the 1
// added; Q, K and V in one tensor lie one behind the other; a layer's experts
// are stacks of gate, of up and of down; no matrix is transposed.
TensorRef GgufTensorRef(const GgufNaming& naming, const TensorRef& ref);

}  // namespace sluice
