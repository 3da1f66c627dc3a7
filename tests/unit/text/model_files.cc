#include "tests/unit/text/model_files.h"

#include <nlohmann/json.hpp>

namespace sluice {

ModelFiles::ModelFiles(const std::map<std::string, std::string>& files) {
  for (const auto& [name, content] : files) {
    dir_.Write(name, content);
  }
}

nlohmann::json SmallTokenizerJson() {
  return nlohmann::json::parse(R"json({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 6, "content": "<s>", "single_word": false,
      "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
    "normalizer": null, "pre_tokenizer": null,
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}},
    "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "unk_token": null, "fuse_unk": false,
      "byte_fallback": false, "ignore_merges": false,
      "vocab": {"a": 0, "b": 1, "c": 2, " ": 3, "ab": 4, "abc": 5},
      "merges": [["a", "b"], "ab c"]}
  })json");
}

}  // namespace sluice
