// Tokenizers that are only vocab.json + merges.txt. transformers chooses their
// parts by tokenizer_class; these are its GPT2Tokenizer (OPT's too) and
// Qwen2Tokenizer.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/host/read_file.h"
#include "common/status_macros.h"
#include "runtime/text/tokenizer/json_part.h"
#include "runtime/text/tokenizer/models/bpe_model.h"
#include "runtime/text/tokenizer/tokenizer_parts.h"

namespace sluice {
namespace {

enum class Kind { kGpt2, kQwen2 };

constexpr const char* kEndOfText = "<|endoftext|>";

// The parts that Qwen2Tokenizer adds, in tokenizer.json's form.
constexpr const char* kQwen2Parts = R"json({
  "normalizer": {"type": "NFC"},
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "behavior": "Isolated", "pattern": {"Regex":
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}
})json";

absl::StatusOr<Kind> KindOf(const std::filesystem::path& model_dir,
                            const TokenizerConfig& config) {
  absl::string_view name = config.tokenizer_class;
  if (absl::EndsWith(name, "Fast")) name.remove_suffix(4);
  if (name.empty() || name == "GPT2Tokenizer") return Kind::kGpt2;
  if (name == "Qwen2Tokenizer") return Kind::kQwen2;
  return Unimplemented((model_dir / "tokenizer_config.json").string(),
                       ": tokenizer_class: \"", config.tokenizer_class,
                       "\" is not supported without a tokenizer.json");
}

absl::StatusOr<std::vector<BpeModel::Merge>> ReadMerges(
    const std::filesystem::path& file) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          ReadSmallFile(file, kMaxTokenizerFileBytes));
  std::vector<BpeModel::Merge> merges;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::EndsWith(line, "\r")) line.remove_suffix(1);
    if (line.empty() || absl::StartsWith(line, "#version")) continue;
    const std::vector<absl::string_view> sides = absl::StrSplit(line, ' ');
    if (sides.size() != 2) {
      return InvalidArgument(file.string(), ": line ", number,
                             " is not two tokens");
    }
    merges.emplace_back(sides[0], sides[1]);
  }
  return merges;
}

absl::StatusOr<std::unique_ptr<BpeModel>> ReadModel(
    const std::filesystem::path& model_dir) {
  const auto vocab_file = model_dir / "vocab.json";
  const auto merges_file = model_dir / "merges.txt";
  SLUICE_ASSIGN_OR_RETURN(const nlohmann::json json,
                          ReadJsonFile(vocab_file, kMaxTokenizerFileBytes));
  SLUICE_ASSIGN_OR_RETURN(
      BpeModel::Vocabulary vocabulary,
      BpeModel::VocabularyFromJson(JsonPart(&json, vocab_file.string())));
  SLUICE_ASSIGN_OR_RETURN(const auto merges, ReadMerges(merges_file));
  BpeModel::Options options;
  options.byte_words = true;
  return Annotate(
      BpeModel::Create(std::move(options), std::move(vocabulary), merges),
      merges_file.string());
}

// Sets a named token of the class, if the files do not set it.
void SetDefault(const char* name, TokenizerConfig* config) {
  AddedToken token;
  token.content = kEndOfText;
  token.special = true;
  token.normalized = false;
  config->named.try_emplace(name, token);
}

// The named and extra tokens once more, which Qwen2Tokenizer adds without their
// flags.
std::vector<AddedToken> WithoutFlags(const TokenizerConfig& config) {
  std::vector<AddedToken> tokens;
  const auto add = [&](const std::string& content) {
    AddedToken& token = tokens.emplace_back();
    token.content = content;
    token.special = true;
    token.normalized = false;
  };
  for (const auto& [name, text] : config.SpecialTokens()) add(text);
  for (const AddedToken& token : config.extra_special) add(token.content);
  return tokens;
}

}  // namespace

absl::StatusOr<TokenizerParts> ReadVocabAndMerges(
    const std::filesystem::path& model_dir, const TokenizerConfig& files) {
  SLUICE_ASSIGN_OR_RETURN(const Kind kind, KindOf(model_dir, files));
  TokenizerConfig config = files;
  for (const char* name : {"eos_token", "unk_token"}) SetDefault(name, &config);
  SetDefault(kind == Kind::kGpt2 ? "bos_token" : "pad_token", &config);

  TokenizerParts parts;
  SLUICE_ASSIGN_OR_RETURN(parts.model, ReadModel(model_dir));
  if (kind == Kind::kGpt2) {
    SLUICE_ASSIGN_OR_RETURN(
        parts.pre_tokenizer,
        CreateGpt2PreTokenizer(config.add_prefix_space.value_or(false)));
  } else {
    const nlohmann::json json = nlohmann::json::parse(kQwen2Parts);
    const JsonPart root(&json, "Qwen2Tokenizer");
    SLUICE_ASSIGN_OR_RETURN(const JsonPart normalizer, root.Get("normalizer"));
    SLUICE_ASSIGN_OR_RETURN(parts.normalizer, CreateNormalizer(normalizer));
    SLUICE_ASSIGN_OR_RETURN(const JsonPart words, root.Get("pre_tokenizer"));
    bool bytes = false;
    SLUICE_ASSIGN_OR_RETURN(
        parts.pre_tokenizer,
        CreatePreTokenizer(words, /*bytes_at_end=*/true, &bytes));
  }
  parts.decoders.push_back(ByteLevelDecoder());

  const AddedTokens::Model model = ModelView(parts.model.get());
  parts.added.Add(TokensToAdd(config, {}), model);
  if (kind == Kind::kQwen2) parts.added.Add(WithoutFlags(config), model);
  SLUICE_RETURN_IF_ERROR(parts.added.Finish(parts.normalizer));

  FrameByConfig(config, &parts);
  return parts;
}

}  // namespace sluice
