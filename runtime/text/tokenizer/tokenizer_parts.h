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
#include "runtime/text/tokenizer/sentencepiece/model_file.h"
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

// Builds what llama.cpp does of pieces with scores: BPE in which the best score
// is merged first, with bytes for what has no piece. `where` is for errors.
absl::StatusOr<TokenizerParts> MakeScoredPieces(SentencePieceModel model,
                                                const TokenizerConfig& config,
                                                const std::string& where);

// Reads the tokenizer in the metadata of a GGUF file. kNotFound if it has none;
// kUnimplemented names a model or a pre-tokenizer that is not supported.
absl::StatusOr<TokenizerParts> ReadGgufTokenizer(
    const std::filesystem::path& file);

// Sets the special tokens to those of `config`, and puts those around the text
// that it asks for: for files that hold no post-processor.
void FrameByConfig(const TokenizerConfig& config, TokenizerParts* parts);

}  // namespace sluice
