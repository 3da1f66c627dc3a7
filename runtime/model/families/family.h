#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/model/layer_weights.h"

namespace sluice {

// Where a checkpoint has a weight: rows of a tensor (elements, of a vector), as
// they are or changed.
struct TensorSlice {
  std::string name;
  int64_t first_row = 0;
  int64_t tensor_rows = 0;  // of the whole tensor; 0: the weight is all of it
  // If not 0, the rows lie in blocks of so many, each of which begins
  // block_stride rows behind the one before.
  int64_t block_rows = 0;
  int64_t block_stride = 0;
  // If not 0, of each head_rows rows so many, the first ones, are rotated in
  // pairs of neighbours (2 i, 2 i + 1). As RotarySpec has pairs (i, i + dim /
  // 2), the weight has the even ones first.
  int32_t interleaved = 0;
  int32_t head_rows = 0;
  // Of a vector: it is stored as [heads, head_rows].
  bool by_head = false;
  // Of a vector: head_rows elements of each head are a tensor of their own,
  // called `name`, a dot, the head's number and ".weight".
  bool tensor_each_head = false;
  // The tensor is stored as [inputs, outputs].
  bool transposed = false;
  // If not 0, the tensor is a stack, [stack, ...], of so many as all this says,
  // as of one for each expert; the weight is in number `in_stack`.
  int64_t stack = 0;
  int64_t in_stack = 0;
  // The weight is scale * stored + add, in float32.
  float scale = 1;
  float add = 0;

  // Returns the row of the tensor that has a row of the weight.
  int64_t StoredRow(int64_t row) const;
};

// A family of models: how its config.json describes a decoder, and what its
// checkpoints call the weights. Each has a file of its own; families.cc lists
// them.
struct Family {
  std::vector<absl::string_view> model_types;  // of config.json
  // Sets all of `spec` but model_type, which is set already. The errors of
  // ParseDecoderSpec.
  absl::Status (*describe)(const nlohmann::json& config, DecoderSpec* spec);
  // Says where a weight is that a spec of this family has; `layer` is that of a
  // layer's weights.
  TensorSlice (*bind)(const DecoderSpec& spec, TensorRole role, int layer);
  // The same for the weights of a mixture's experts, of a family that has any.
  TensorSlice (*bind_expert)(const DecoderSpec& spec, TensorRole role,
                             int layer, int expert) = nullptr;
};

const Family& BloomFamily();
const Family& CohereFamily();
const Family& Ernie45MoeFamily();
const Family& FalconFamily();
const Family& GemmaFamily();
const Family& Glm4Family();
const Family& Glm4MoeFamily();
const Family& Gpt2Family();
const Family& GptNeoxFamily();
const Family& GptOssFamily();
const Family& GptjFamily();
const Family& GraniteFamily();
const Family& LlamaFamily();
const Family& MiniMaxM2Family();
const Family& MistralFamily();
const Family& MixtralFamily();
const Family& OlmoFamily();
const Family& OlmoeFamily();
const Family& OptFamily();
const Family& Phi3Family();
const Family& Qwen2Family();
const Family& Qwen2MoeFamily();
const Family& Qwen3Family();
const Family& Qwen3MoeFamily();
const Family& Smollm3Family();
const Family& StablelmFamily();
const Family& Starcoder2Family();

// Returns null for one that is not known.
const Family* FindFamily(absl::string_view model_type);
// Returns the model types that are known, in order of name.
std::vector<absl::string_view> KnownModelTypes();

}  // namespace sluice
