#include "runtime/text/tokenizer/tokenizer_parts.h"

#include <optional>
#include <utility>

namespace sluice {

AddedTokens::Model ModelView(const TokenModel* model) {
  return {[model](absl::string_view token) { return model->TokenToId(token); },
          model->size()};
}

void FrameByConfig(const TokenizerConfig& config, TokenizerParts* parts) {
  parts->special_tokens = config.SpecialTokens();
  std::vector<int32_t> before;
  std::vector<int32_t> behind;
  const auto id_of = [&](const char* name) -> std::optional<int32_t> {
    const auto it = parts->special_tokens.find(name);
    if (it == parts->special_tokens.end()) return std::nullopt;
    return parts->added.TokenToId(it->second);
  };
  const auto bos = id_of("bos_token");
  const auto eos = id_of("eos_token");
  if (config.add_bos_token && bos) before.push_back(*bos);
  if (config.add_eos_token && eos) behind.push_back(*eos);
  parts->post_processor =
      PostProcessor::Around(std::move(before), std::move(behind));
}

}  // namespace sluice
