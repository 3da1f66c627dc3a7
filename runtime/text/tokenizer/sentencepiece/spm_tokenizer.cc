// Tokenizers that are only a tokenizer.model. transformers chooses their parts
// by tokenizer_class; these are its LlamaTokenizer and GemmaTokenizer, and what
// it makes for classes without rules of their own, which does as the file says.

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/host/read_file.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"
#include "runtime/text/tokenizer/json_part.h"
#include "runtime/text/tokenizer/models/bpe_model.h"
#include "runtime/text/tokenizer/models/unigram_model.h"
#include "runtime/text/tokenizer/sentencepiece/model_file.h"
#include "runtime/text/tokenizer/tokenizer_parts.h"

namespace sluice {
namespace {

using nlohmann::json;
using Model = SentencePieceModel;
using Merge = BpeModel::Merge;

// A GGUF file's is Llama's, but that the scores say which merge goes first.
enum class Kind { kLlama, kGemma, kGguf, kAsTheFileSays };

constexpr const char* kSpaceMark = "\xE2\x96\x81";  // "▁"

// Classes that transformers builds by rules of their own.
constexpr const char* kOtherClasses[] = {
    "AlbertTokenizer",      "BarthezTokenizer",    "BigBirdTokenizer",
    "CamembertTokenizer",   "CodeLlamaTokenizer",  "CohereTokenizer",
    "CpmTokenizer",         "DebertaV2Tokenizer",  "FNetTokenizer",
    "MBart50Tokenizer",     "MBartTokenizer",      "NllbTokenizer",
    "PegasusTokenizer",     "ReformerTokenizer",   "RemBertTokenizer",
    "SeamlessM4TTokenizer", "T5Tokenizer",         "UdopTokenizer",
    "XGLMTokenizer",        "XLMRobertaTokenizer", "XLNetTokenizer"};

absl::StatusOr<Kind> KindOf(const std::filesystem::path& file,
                            const TokenizerConfig& config, const Model& model) {
  absl::string_view name = config.tokenizer_class;
  absl::ConsumeSuffix(&name, "Fast");
  if (std::find(std::begin(kOtherClasses), std::end(kOtherClasses), name) !=
      std::end(kOtherClasses)) {
    return Unimplemented(
        (file.parent_path() / "tokenizer_config.json").string(),
        ": tokenizer_class: \"", config.tokenizer_class,
        "\" is not supported without a tokenizer.json");
  }
  // The parts of these two would take a unigram model for BPE and leave out
  // its table of characters, which no model was trained with.
  if (model.model_type != Model::ModelType::kBpe ||
      !model.precompiled_charsmap.empty()) {
    return Kind::kAsTheFileSays;
  }
  if (name == "LlamaTokenizer") return Kind::kLlama;
  if (name == "GemmaTokenizer") return Kind::kGemma;
  return Kind::kAsTheFileSays;
}

json Replace(const json& pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", pattern}, {"content", content}};
}
json Regex(const std::string& pattern) { return {{"Regex", pattern}}; }
json Literal(const char* text) { return {{"String", text}}; }

json Metaspace(const char* scheme) {
  return {{"type", "Metaspace"},
          {"replacement", kSpaceMark},
          {"prepend_scheme", scheme},
          {"split", false}};
}

json Sequence(const char* name, json steps) {
  return {{"type", "Sequence"}, {name, std::move(steps)}};
}

// The decoder of models whose text begins with a space that is not there.
json Decoder(bool bytes, bool strip) {
  json steps = json::array({Replace(Literal(kSpaceMark), " ")});
  if (bytes) steps.push_back({{"type", "ByteFallback"}});
  if (bytes || strip) steps.push_back({{"type", "Fuse"}});
  if (strip) {
    steps.push_back(
        {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return Sequence("decoders", std::move(steps));
}

json LlamaParts(const TokenizerConfig& config) {
  const bool prefix = config.add_prefix_space.value_or(true);
  const bool everywhere = config.prefix_everywhere.value_or(false);
  return {{"pre_tokenizer", Metaspace(!prefix      ? "never"
                                      : everywhere ? "always"
                                                   : "first")},
          {"decoder", Decoder(/*bytes=*/true, prefix)}};
}

json GemmaParts() {
  return {{"normalizer", Replace(Literal(" "), kSpaceMark)},
          {"decoder", Decoder(/*bytes=*/true, /*strip=*/false)}};
}

// A pattern that matches one of these texts, the longest first.
std::string AnyOf(std::vector<std::string> texts) {
  std::stable_sort(
      texts.begin(), texts.end(), [](const auto& a, const auto& b) {
        const auto chars = [](absl::string_view text) {
          return std::count_if(text.begin(), text.end(),
                               [](char c) { return !IsUtf8Continuation(c); });
        };
        return chars(a) > chars(b);
      });
  std::string pattern;
  for (const std::string& text : texts) {
    if (!pattern.empty()) pattern += '|';
    for (size_t pos = 0; pos < text.size();) {
      const char32_t c = DecodeUtf8(text, &pos);
      absl::StrAppend(&pattern, "\\x{", absl::Hex(static_cast<uint32_t>(c)),
                      "}");
    }
  }
  return pattern;
}

// What the file itself says, as SentencePiece does it: characters are replaced,
// spaces are cut down and marked, the text gets a space before it, and pieces
// of users are words of their own.
json PartsOfFile(const Model& model, const TokenizerConfig& config,
                 const std::vector<std::string>& user_defined) {
  const bool everywhere = config.prefix_everywhere.value_or(true);
  json normalizers = json::array();
  if (!model.precompiled_charsmap.empty()) {
    normalizers.push_back({{"type", "Precompiled"},
                           {"precompiled_charsmap",
                            absl::Base64Escape(model.precompiled_charsmap)}});
  }
  if (model.remove_extra_whitespaces) {
    normalizers.push_back(Replace(Regex(R"(\A +| +\z)"), ""));
    normalizers.push_back(Replace(Regex(" {2,}"), " "));
  }
  if (model.escape_whitespaces) {
    normalizers.push_back(Replace(Literal(" "), kSpaceMark));
  }
  json words = json::array();
  if (model.add_dummy_prefix) {
    // Metaspace puts no mark before a mark, but SentencePiece does.
    if (everywhere) {
      normalizers.push_back(
          Replace(Regex(R"(\A\x{2581})"), "\xE2\x96\x81\xE2\x96\x81"));
    }
    words.push_back(Metaspace(everywhere ? "always" : "first"));
  }
  if (!user_defined.empty()) {
    words.push_back({{"type", "Split"},
                     {"pattern", Regex(AnyOf(user_defined))},
                     {"behavior", "Isolated"}});
  }
  return {{"normalizer", Sequence("normalizers", std::move(normalizers))},
          {"pre_tokenizer", Sequence("pretokenizers", std::move(words))},
          {"decoder", Decoder(model.byte_fallback, model.add_dummy_prefix)}};
}

absl::Status SetParts(const json& spec, const std::string& where,
                      TokenizerParts* parts) {
  const JsonPart root(&spec, where);
  SLUICE_ASSIGN_OR_RETURN(const auto normalizer, root.Find("normalizer"));
  if (normalizer) {
    SLUICE_ASSIGN_OR_RETURN(parts->normalizer, CreateNormalizer(*normalizer));
  }
  SLUICE_ASSIGN_OR_RETURN(const auto words, root.Find("pre_tokenizer"));
  if (words) {
    bool bytes = false;
    SLUICE_ASSIGN_OR_RETURN(
        parts->pre_tokenizer,
        CreatePreTokenizer(*words, /*bytes_at_end=*/false, &bytes));
  }
  SLUICE_ASSIGN_OR_RETURN(const JsonPart decoder, root.Get("decoder"));
  SLUICE_ASSIGN_OR_RETURN(parts->decoders, DecodersFromJson(decoder));
  return absl::OkStatus();
}

// Appends all ways to make `piece` of two pieces that are in `halves`.
void AppendMerges(const std::string& piece, const BpeModel::Vocabulary& halves,
                  std::vector<Merge>* merges) {
  for (size_t at = Utf8Length(piece[0]); at < piece.size();
       at += Utf8Length(piece[at])) {
    std::string left = piece.substr(0, at);
    std::string right = piece.substr(at);
    if (halves.contains(left) && halves.contains(right)) {
      merges->emplace_back(std::move(left), std::move(right));
    }
  }
}

// The merges of a file in the order of their pieces: that of ids or, if
// `by_score`, the best score first and only of normal pieces.
std::vector<Merge> MergesOf(const Model& model, bool by_score) {
  std::vector<int32_t> order;
  BpeModel::Vocabulary halves;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Model::Piece& piece = model.pieces[i];
    if (by_score && piece.type != Model::PieceType::kNormal) continue;
    order.push_back(static_cast<int32_t>(i));
    halves.emplace(piece.text, static_cast<int32_t>(i));
  }
  if (by_score) {
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return model.pieces[a].score > model.pieces[b].score;
    });
  }
  std::vector<Merge> merges;
  for (const int32_t id : order) {
    AppendMerges(model.pieces[id].text, halves, &merges);
  }
  return merges;
}

absl::StatusOr<std::unique_ptr<TokenModel>> MakeModel(const Model& model,
                                                      Kind kind,
                                                      bool whole_words) {
  if (model.model_type == Model::ModelType::kUnigram) {
    UnigramModel::Options options;
    options.byte_fallback = model.byte_fallback;
    if (model.unk_id >= 0) options.unk_id = model.unk_id;
    UnigramModel::Vocabulary vocabulary;
    for (const Model::Piece& piece : model.pieces) {
      vocabulary.emplace_back(piece.text, piece.score);
    }
    return UnigramModel::Create(options, std::move(vocabulary));
  }
  BpeModel::Options options;
  options.has_unk_token = true;
  options.unk_token = model.unk_piece;
  options.fuse_unk = true;
  options.byte_fallback = kind != Kind::kAsTheFileSays || model.byte_fallback;
  options.ignore_merges = whole_words;
  BpeModel::Vocabulary vocabulary;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    vocabulary.emplace(model.pieces[i].text, static_cast<int32_t>(i));
  }
  return BpeModel::Create(
      std::move(options), std::move(vocabulary),
      MergesOf(model, kind == Kind::kAsTheFileSays || kind == Kind::kGguf));
}

// Gives pieces the names that tokenizer_config.json has for their ids, except
// one that a piece of another id keeps.
void Rename(const TokenizerConfig& config, Model* model) {
  std::set<std::string> kept;
  for (size_t i = 0; i < model->pieces.size(); ++i) {
    if (!config.added.contains(static_cast<int32_t>(i))) {
      kept.insert(model->pieces[i].text);
    }
  }
  for (const auto& [id, token] : config.added) {
    if (id < static_cast<int32_t>(model->pieces.size()) &&
        !kept.contains(token.content) && !token.content.empty()) {
      model->pieces[id].text = token.content;
    }
  }
}

void SetDefault(const char* name, const std::string& content,
                TokenizerConfig* config) {
  AddedToken token;
  token.content = content;
  token.special = true;
  token.normalized = false;
  config->named.try_emplace(name, token);
}

void SetDefaultNames(const Model& model, Kind kind, TokenizerConfig* config) {
  switch (kind) {
    case Kind::kLlama:
      SetDefault("unk_token", "<unk>", config);
      SetDefault("bos_token", "<s>", config);
      SetDefault("eos_token", "</s>", config);
      break;
    case Kind::kGemma:
      for (const char* name : {"unk", "bos", "eos", "pad", "mask"}) {
        SetDefault(absl::StrCat(name, "_token").c_str(),
                   absl::StrCat("<", name, ">"), config);
      }
      break;
    case Kind::kGguf:
      break;
    case Kind::kAsTheFileSays:
      const auto set = [&](const char* name, int32_t id,
                           const std::string& piece) {
        if (id >= 0) SetDefault(name, piece, config);
      };
      set("unk_token", model.unk_id, model.unk_piece);
      set("bos_token", model.bos_id, model.bos_piece);
      set("eos_token", model.eos_id, model.eos_piece);
      break;
  }
}

// A file of tiktoken has the same name and lines of Base64 and a rank.
bool IsTiktoken(absl::string_view bytes) {
  const absl::string_view line = bytes.substr(0, bytes.find('\n'));
  const size_t space = line.find(' ');
  std::string token;
  return space != line.npos && space + 1 < line.size() &&
         absl::Base64Unescape(line.substr(0, space), &token) &&
         std::all_of(line.begin() + static_cast<ptrdiff_t>(space) + 1,
                     line.end(), absl::ascii_isdigit);
}

absl::StatusOr<Model> ReadModelFile(const std::filesystem::path& file) {
  SLUICE_ASSIGN_OR_RETURN(const std::string bytes,
                          ReadSmallFile(file, kMaxTokenizerFileBytes));
  if (IsTiktoken(bytes)) {
    return Unimplemented(
        "is a file of tiktoken, not of SentencePiece: convert "
        "it to tokenizer.json");
  }
  return Model::Parse(bytes);
}

absl::StatusOr<TokenizerParts> MakeParts(Model model, Kind kind,
                                         const TokenizerConfig& files,
                                         const std::string& where) {
  TokenizerConfig config = files;
  SetDefaultNames(model, kind, &config);
  const bool as_the_file_says = kind == Kind::kAsTheFileSays;
  if (as_the_file_says) {
    Rename(config, &model);
    // So each text between added tokens gets its own space before it.
    for (auto& [id, token] : config.added) {
      if (model.add_dummy_prefix) token.normalized = false;
    }
  }
  // These are tokens beside those that the configuration lists. transformers 5
  // forgets them if it lists any, which 4 did not.
  std::vector<std::string> user_defined;
  for (const Model::Piece& piece : model.pieces) {
    const bool special = piece.type == Model::PieceType::kControl;
    if (!special && piece.type != Model::PieceType::kUserDefined) continue;
    if (!special && as_the_file_says) {
      user_defined.push_back(piece.text);
      std::erase_if(config.extra_special, [&](const AddedToken& token) {
        return token.content == piece.text;
      });
      continue;
    }
    AddedToken& token = config.extra_special.emplace_back();
    token.content = piece.text;
    token.special = special;
    token.normalized = false;
  }

  TokenizerParts parts;
  SLUICE_ASSIGN_OR_RETURN(
      parts.model,
      Annotate(MakeModel(model, kind, !user_defined.empty()), where));
  SLUICE_RETURN_IF_ERROR(SetParts(as_the_file_says
                                      ? PartsOfFile(model, config, user_defined)
                                  : kind == Kind::kGemma ? GemmaParts()
                                                         : LlamaParts(config),
                                  where, &parts));
  parts.added.Add(TokensToAdd(config, {}), ModelView(parts.model.get()));
  SLUICE_RETURN_IF_ERROR(Annotate(parts.added.Finish(parts.normalizer), where));
  FrameByConfig(config, &parts);
  return parts;
}

}  // namespace

absl::StatusOr<TokenizerParts> ReadSentencePiece(
    const std::filesystem::path& file, const TokenizerConfig& config) {
  const std::string where = file.string();
  SLUICE_ASSIGN_OR_RETURN(Model model, Annotate(ReadModelFile(file), where));
  SLUICE_ASSIGN_OR_RETURN(const Kind kind, KindOf(file, config, model));
  return MakeParts(std::move(model), kind, config, where);
}

absl::StatusOr<TokenizerParts> MakeScoredPieces(SentencePieceModel model,
                                                const TokenizerConfig& config,
                                                const std::string& where) {
  return MakeParts(std::move(model), Kind::kGguf, config, where);
}

}  // namespace sluice
