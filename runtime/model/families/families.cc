#include <algorithm>

#include "runtime/model/families/family.h"

namespace sluice {

int64_t TensorSlice::StoredRow(int64_t row) const {
  if (interleaved > 0) {
    const int64_t half = interleaved / 2;
    const int64_t of_head = row % head_rows;
    if (of_head < interleaved) {
      row +=
          (of_head < half ? 2 * of_head : 2 * (of_head - half) + 1) - of_head;
    }
  }
  if (block_rows > 0) row = row / block_rows * block_stride + row % block_rows;
  return first_row + row;
}

namespace {

const std::vector<const Family*>& Families() {
  static const auto* const kFamilies = new std::vector<const Family*>{
      &BloomFamily(),    &CohereFamily(),    &Ernie45MoeFamily(),
      &FalconFamily(),   &GemmaFamily(),     &Glm4Family(),
      &Glm4MoeFamily(),  &Gpt2Family(),      &GptNeoxFamily(),
      &GptOssFamily(),   &GptjFamily(),      &GraniteFamily(),
      &LlamaFamily(),    &MiniMaxM2Family(), &MistralFamily(),
      &MixtralFamily(),  &OlmoFamily(),      &OlmoeFamily(),
      &OptFamily(),      &Phi3Family(),      &Qwen2Family(),
      &Qwen2MoeFamily(), &Qwen3Family(),     &Qwen3MoeFamily(),
      &Smollm3Family(),  &StablelmFamily(),  &Starcoder2Family(),
  };
  return *kFamilies;
}

}  // namespace

const Family* FindFamily(absl::string_view model_type) {
  for (const Family* family : Families()) {
    const auto& types = family->model_types;
    if (std::count(types.begin(), types.end(), model_type) > 0) return family;
  }
  return nullptr;
}

std::vector<absl::string_view> KnownModelTypes() {
  std::vector<absl::string_view> types;
  for (const Family* family : Families()) {
    types.insert(types.end(), family->model_types.begin(),
                 family->model_types.end());
  }
  std::sort(types.begin(), types.end());
  return types;
}

}  // namespace sluice
