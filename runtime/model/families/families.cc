#include <algorithm>

#include "runtime/model/families/family.h"

namespace sluice {
namespace {

const std::vector<const Family*>& Families() {
  static const auto* const kFamilies = new std::vector<const Family*>{
      &GraniteFamily(), &LlamaFamily(),    &MistralFamily(),
      &OptFamily(),     &Phi3Family(),     &Qwen2Family(),
      &Qwen3Family(),   &StablelmFamily(), &Starcoder2Family(),
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
