// Tokenizers in the metadata of GGUF files (ggml, docs/gguf.md, "Tokenizer").

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/text/utf8.h"
#include "runtime/gguf/gguf_file.h"
#include "runtime/text/tokenizer/json_part.h"
#include "runtime/text/tokenizer/models/bpe_model.h"
#include "runtime/text/tokenizer/tokenizer_parts.h"

namespace sluice {
namespace {

using Piece = SentencePieceModel::Piece;
using PieceType = SentencePieceModel::PieceType;

constexpr char kTokens[] = "tokenizer.ggml.tokens";
constexpr char kTypes[] = "tokenizer.ggml.token_type";
constexpr char kScores[] = "tokenizer.ggml.scores";

// The pre-tokenizers of models in tokenizer.json's form, and whether NFC comes
// before, as it does in their own tokenizer.json. An empty one is GPT-2's.
struct PreTokenizerKind {
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // where the metadata does not say
  const char* json = "";
};

#define SLUICE_SPLIT(pattern)                                           \
  R"json({"type": "Sequence", "pretokenizers": [{"type": "Split",)json" \
  R"json("behavior": "Isolated", "pattern": {"Regex": ")json" pattern   \
  R"json("}}, {"type": "ByteLevel", "add_prefix_space": false,)json"    \
  R"json("use_regex": false}]})json"

// By the number of digits in a row.
constexpr char kThreeDigits[] = SLUICE_SPLIT(
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|)"
    R"( ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)");
constexpr char kOneDigit[] = SLUICE_SPLIT(
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|)"
    R"( ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)");
constexpr char kGpt4o[] = SLUICE_SPLIT(
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*)"
    R"([\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+)"
    R"([\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|)"
    R"(\\s+(?!\\S)|\\s+)");
constexpr char kTekken[] = SLUICE_SPLIT(
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*)"
    R"([\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|)"
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+)"
    R"([\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|)"
    R"(\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)");
constexpr char kBloom[] = SLUICE_SPLIT(R"( ?[^(\\s|[.,!?…。，、।۔،])]+)");
#undef SLUICE_SPLIT

constexpr char kDigitsApart[] = R"json(
  {"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": true},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}]})json";
constexpr char kFalcon[] = R"json(
  {"type": "Sequence", "pretokenizers": [
    {"type": "Punctuation", "behavior": "Contiguous"},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    {"type": "Digits", "individual_digits": false},
    {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"},
     "behavior": "Isolated"}]})json";

// The names of "tokenizer.ggml.pre" (llama.cpp, src/llama-vocab.cpp).
struct NamedKind {
  absl::string_view name;
  PreTokenizerKind kind;
};
constexpr PreTokenizerKind kLlama3 = {
    .ignore_merges = true, .add_bos = true, .json = kThreeDigits};
constexpr NamedKind kKinds[] = {
    {"bloom", {.json = kBloom}},
    {"chatglm-bpe", {.json = kThreeDigits}},
    {"codeshell", {.json = kDigitsApart}},
    {"command-r", {.nfc = true, .json = kDigitsApart}},
    {"dbrx", {.json = kThreeDigits}},
    {"deepseek-r1-qwen", {.nfc = true, .json = kOneDigit}},
    {"default", {}},
    {"exaone", {.json = kDigitsApart}},
    {"falcon", {.json = kFalcon}},
    {"falcon3", kLlama3},
    {"glm4", {.ignore_merges = true, .json = kThreeDigits}},
    {"gpt-2", {}},
    {"gpt-4o", {.json = kGpt4o}},
    {"llama-bpe", kLlama3},
    {"llama-v3", kLlama3},
    {"llama3", kLlama3},
    {"llama4", {.json = kGpt4o}},
    {"mpt", {}},
    {"olmo", {.nfc = true}},
    {"phi-2", {}},
    {"pixtral", kLlama3},
    {"qwen2", {.nfc = true, .json = kOneDigit}},
    {"refact", {.json = kDigitsApart}},
    {"smaug-bpe", {.json = kThreeDigits}},
    {"smollm", {.json = kDigitsApart}},
    {"stablelm2", {.json = kOneDigit}},
    {"starcoder", {.json = kDigitsApart}},
    {"tekken", {.ignore_merges = true, .add_bos = true, .json = kTekken}},
};

// Reads what all tokenizers have.
class Reader {
 public:
  Reader(const GgufMetadata& metadata, std::string where)
      : metadata_(metadata), where_(std::move(where)) {}

  absl::StatusOr<TokenizerParts> Read() {
    SLUICE_ASSIGN_OR_RETURN(const auto model,
                            metadata_.String("tokenizer.ggml.model"));
    if (!model) return NotFound("no metadata \"tokenizer.ggml.model\"");
    SLUICE_RETURN_IF_ERROR(ReadPieces());
    SLUICE_RETURN_IF_ERROR(ReadNames());
    if (*model == "gpt2") return Bpe();
    if (*model == "llama") return SentencePiece();
    return Unimplemented("metadata \"tokenizer.ggml.model\" is ",
                         QuoteForMessage(*model), "; gpt2 and llama run");
  }

 private:
  absl::Status ReadPieces() {
    SLUICE_ASSIGN_OR_RETURN(const auto* tokens, metadata_.Strings(kTokens));
    SLUICE_ASSIGN_OR_RETURN(const auto types, metadata_.Ints(kTypes));
    SLUICE_ASSIGN_OR_RETURN(const auto* scores, metadata_.Numbers(kScores));
    if (tokens->empty()) {
      return NotFound("no metadata ", QuoteForMessage(kTokens));
    }
    for (const auto& [key, size] : {std::pair(kTypes, types.size()),
                                    std::pair(kScores, scores->size())}) {
      if (size != 0 && size != tokens->size()) {
        return InvalidArgument("metadata ", QuoteForMessage(key), " has ", size,
                               " entries for ", tokens->size(), " tokens");
      }
    }
    pieces_.reserve(tokens->size());
    for (size_t i = 0; i < tokens->size(); ++i) {
      Piece& piece = pieces_.emplace_back();
      piece.text = (*tokens)[i];
      if (const auto invalid = FindInvalidUtf8(piece.text)) {
        return InvalidArgument("metadata ", QuoteForMessage(kTokens),
                               ": token ", i, " is not UTF-8");
      }
      if (!scores->empty()) piece.score = static_cast<float>((*scores)[i]);
      if (types.empty()) continue;
      // 0 stands for a type that is not known.
      if (types[i] < 0 || types[i] > 6) {
        return InvalidArgument("metadata ", QuoteForMessage(kTypes), ": token ",
                               i, " has type ", types[i]);
      }
      piece.type =
          types[i] == 0 ? PieceType::kNormal : static_cast<PieceType>(types[i]);
    }
    return absl::OkStatus();
  }

  absl::Status ReadNames() {
    constexpr std::pair<const char*, const char*> kNames[] = {
        {"bos", "bos_token"},       {"eos", "eos_token"},
        {"unknown", "unk_token"},   {"padding", "pad_token"},
        {"seperator", "sep_token"}, {"mask", "mask_token"}};
    for (const auto& [key, name] : kNames) {
      const std::string full =
          absl::StrCat("tokenizer.ggml.", key, "_token_id");
      SLUICE_ASSIGN_OR_RETURN(const auto id, metadata_.Int(full));
      if (!id || *id == -1 || *id == UINT32_MAX) continue;
      if (*id < 0 || *id >= static_cast<int64_t>(pieces_.size())) {
        return InvalidArgument("metadata ", QuoteForMessage(full), " is ", *id,
                               ", but there are ", pieces_.size(), " tokens");
      }
      AddedToken token;
      token.content = pieces_[*id].text;
      token.special = true;
      token.normalized = false;
      config_.named[name] = token;
    }
    return absl::OkStatus();
  }

  // Sets what stands around a text.
  absl::Status ReadFrame(bool add_bos) {
    const auto flag = [&](const char* key, bool fallback,
                          bool* to) -> absl::Status {
      SLUICE_ASSIGN_OR_RETURN(const auto value, metadata_.Bool(key));
      *to = value.value_or(fallback);
      return absl::OkStatus();
    };
    SLUICE_RETURN_IF_ERROR(
        flag("tokenizer.ggml.add_bos_token", add_bos, &config_.add_bos_token));
    return flag("tokenizer.ggml.add_eos_token", false, &config_.add_eos_token);
  }

  absl::StatusOr<TokenizerParts> SentencePiece() {
    SLUICE_RETURN_IF_ERROR(ReadFrame(/*add_bos=*/true));
    SLUICE_ASSIGN_OR_RETURN(const auto prefix,
                            metadata_.Bool("tokenizer.ggml.add_space_prefix"));
    config_.add_prefix_space = prefix.value_or(true);
    config_.prefix_everywhere = true;
    SentencePieceModel model;
    model.model_type = SentencePieceModel::ModelType::kBpe;
    model.byte_fallback = true;
    const auto unknown = config_.named.find("unk_token");
    if (unknown != config_.named.end()) {
      model.unk_piece = unknown->second->content;
    }
    for (const Piece& piece : pieces_) {
      if (piece.text.empty()) {
        return InvalidArgument("metadata ", QuoteForMessage(kTokens),
                               " has an empty token");
      }
    }
    model.pieces = std::move(pieces_);
    return MakeScoredPieces(std::move(model), config_, where_);
  }

  absl::StatusOr<PreTokenizerKind> KindOfWords() {
    SLUICE_ASSIGN_OR_RETURN(const auto name,
                            metadata_.String("tokenizer.ggml.pre"));
    const auto* const found = std::find_if(
        std::begin(kKinds), std::end(kKinds), [&](const NamedKind& kind) {
          return kind.name == name.value_or("default");
        });
    if (found != std::end(kKinds)) return found->kind;
    return Unimplemented("metadata \"tokenizer.ggml.pre\" is ",
                         QuoteForMessage(*name), ", which is not supported");
  }

  absl::StatusOr<std::unique_ptr<BpeModel>> Model(bool ignore_merges,
                                                  bool byte_words) {
    constexpr char kMerges[] = "tokenizer.ggml.merges";
    SLUICE_ASSIGN_OR_RETURN(const auto* lines, metadata_.Strings(kMerges));
    BpeModel::Vocabulary vocabulary;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      vocabulary.emplace(pieces_[i].text, static_cast<int32_t>(i));
    }
    std::vector<BpeModel::Merge> merges;
    merges.reserve(lines->size());
    for (size_t i = 0; i < lines->size(); ++i) {
      const absl::string_view line = (*lines)[i];
      // A half may be a space itself, where a token is one.
      const size_t space = line.find(' ', 1);
      if (space == line.npos || space + 1 == line.size()) {
        return InvalidArgument("metadata ", QuoteForMessage(kMerges),
                               ": entry ", i, " is not two tokens");
      }
      merges.emplace_back(line.substr(0, space), line.substr(space + 1));
    }
    BpeModel::Options options;
    options.byte_words = byte_words;
    options.ignore_merges = ignore_merges;
    return Annotate(
        BpeModel::Create(std::move(options), std::move(vocabulary), merges),
        absl::StrCat("metadata ", QuoteForMessage(kMerges)));
  }

  absl::StatusOr<TokenizerParts> Bpe() {
    SLUICE_ASSIGN_OR_RETURN(const PreTokenizerKind kind, KindOfWords());
    SLUICE_RETURN_IF_ERROR(ReadFrame(kind.add_bos));
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      const bool special = piece.type == PieceType::kControl ||
                           piece.type == PieceType::kUnknown;
      if (!special && piece.type != PieceType::kUserDefined) continue;
      if (piece.text.empty()) continue;
      AddedToken& token = config_.added[static_cast<int32_t>(i)];
      token.content = piece.text;
      token.special = special;
      token.normalized = false;
    }
    TokenizerParts parts;
    if (kind.nfc) {
      const nlohmann::json nfc = {{"type", "NFC"}};
      SLUICE_ASSIGN_OR_RETURN(parts.normalizer,
                              CreateNormalizer(JsonPart(&nfc, where_)));
    }
    bool bytes = true;
    if (*kind.json == '\0') {
      SLUICE_ASSIGN_OR_RETURN(
          parts.pre_tokenizer,
          CreateGpt2PreTokenizer(/*add_prefix_space=*/false));
    } else {
      const nlohmann::json json = nlohmann::json::parse(kind.json);
      SLUICE_ASSIGN_OR_RETURN(
          parts.pre_tokenizer,
          CreatePreTokenizer(JsonPart(&json, where_), /*bytes_at_end=*/true,
                             &bytes));
    }
    SLUICE_ASSIGN_OR_RETURN(parts.model, Model(kind.ignore_merges, bytes));
    parts.decoders.push_back(ByteLevelDecoder());
    parts.added.Add(TokensToAdd(config_, {}), ModelView(parts.model.get()));
    SLUICE_RETURN_IF_ERROR(parts.added.Finish(parts.normalizer));
    FrameByConfig(config_, &parts);
    return parts;
  }

  const GgufMetadata& metadata_;
  const std::string where_;
  std::vector<Piece> pieces_;  // by id
  TokenizerConfig config_;
};

}  // namespace

absl::StatusOr<TokenizerParts> ReadGgufTokenizer(
    const std::filesystem::path& file) {
  SLUICE_ASSIGN_OR_RETURN(const GgufMetadata metadata, ReadGgufMetadata(file));
  return Annotate(Reader(metadata, file.string()).Read(), file.string());
}

}  // namespace sluice
