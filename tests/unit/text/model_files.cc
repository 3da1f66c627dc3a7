#include "tests/unit/text/model_files.h"

#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace sluice {

ModelFiles::ModelFiles(const std::map<std::string, std::string>& files) {
  std::string pattern =
      (std::filesystem::temp_directory_path() / "sluice-text-XXXXXX").string();
  dir_ = mkdtemp(pattern.data());
  for (const auto& [name, content] : files) {
    std::ofstream(dir_ / name, std::ios::binary) << content;
  }
}

ModelFiles::~ModelFiles() {
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
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
