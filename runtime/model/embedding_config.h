#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "absl/status/statusor.h"
#include "common/pooling.h"

namespace sluice {

// What a model directory says of how its hidden states become embeddings, in
// the files of sentence-transformers.
struct EmbeddingConfig {
  // Without modules.json: the last token's, normalized, as vLLM takes decoders.
  Pooling pooling = Pooling::kLastToken;
  bool normalize = true;
  bool from_files = false;  // the files say the two above
  // The tokens of a text at most, max_seq_length; 0: those of the model.
  int32_t max_tokens = 0;

  // Of a reranker: a text's score is the logit of `yes` less that of `no`
  // behind it.
  struct LogitScore {
    int32_t yes = 0;
    std::optional<int32_t> no;
  };
  std::optional<LogitScore> logit_score;
};

// Reads modules.json, the config.json of its modules, and
// sentence_bert_config.json. Tokens are below `vocab_size`. kUnimplemented
// names the module or the setting that Sluice does not have; kInvalidArgument
// the file and what is wrong with it; kNotFound a module's file that is
// missing.
absl::StatusOr<EmbeddingConfig> ReadEmbeddingConfig(
    const std::filesystem::path& directory, int32_t vocab_size);

}  // namespace sluice
