#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/text/tokenizer/added_tokens.h"
#include "runtime/text/tokenizer/decoder.h"
#include "runtime/text/tokenizer/models/token_model.h"
#include "runtime/text/tokenizer/normalizer.h"
#include "runtime/text/tokenizer/post_processor.h"
#include "runtime/text/tokenizer/pre_tokenizer.h"
#include "runtime/text/tokenizer/tokenizer_config.h"

namespace sluice {

// The parts of a tokenizer. `normalizer` and `pre_tokenizer` may be null.
struct TokenizerParts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  AddedTokens added;
  PostProcessor post_processor;
  std::vector<Decoder> decoders;
  std::map<std::string, std::string> special_tokens;  // by name
};

constexpr size_t kMaxTokenizerFileBytes = size_t{1} << 30;

// Returns AddedTokens' view of `model`, which must outlive it.
AddedTokens::Model ModelView(const TokenModel* model);

// Reads a directory's tokenizer.json.
absl::StatusOr<TokenizerParts> ReadTokenizerJson(
    const std::filesystem::path& file, const TokenizerConfig& config);

// Reads vocab.json + merges.txt and builds what transformers does for
// tokenizer_class GPT2Tokenizer and Qwen2Tokenizer.
absl::StatusOr<TokenizerParts> ReadVocabAndMerges(
    const std::filesystem::path& model_dir, const TokenizerConfig& config);

// Reads a tokenizer.model of SentencePiece and builds what transformers does
// for its tokenizer_class.
absl::StatusOr<TokenizerParts> ReadSentencePiece(
    const std::filesystem::path& file, const TokenizerConfig& config);

// Sets the special tokens to those of `config`, and puts those around the text
// that it asks for: for files that hold no post-processor.
void FrameByConfig(const TokenizerConfig& config, TokenizerParts* parts);

}  // namespace sluice
