#include "runtime/text/tokenizer/tokenizer.h"

#include <utility>

#include "absl/strings/match.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"
#include "runtime/gguf/gguf_file.h"
#include "runtime/text/tokenizer/pieces.h"
#include "runtime/text/tokenizer/tokenizer_parts.h"

namespace sluice {
namespace {

constexpr size_t kMaxTextBytes = size_t{64} << 20;

class PartsTokenizer : public Tokenizer {
 public:
  explicit PartsTokenizer(TokenizerParts parts) : parts_(std::move(parts)) {}

  absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text, bool add_special_tokens) const override {
    if (text.size() > kMaxTextBytes) {
      return InvalidArgument("text of ", text.size(), " bytes is longer than ",
                             kMaxTextBytes);
    }
    if (const auto invalid = FindInvalidUtf8(text)) {
      return InvalidArgument("text is not valid UTF-8 at byte ", *invalid);
    }
    Pieces pieces;
    SLUICE_RETURN_IF_ERROR(CutAddedTokens(text, &pieces));
    if (parts_.pre_tokenizer != nullptr) {
      SLUICE_RETURN_IF_ERROR(parts_.pre_tokenizer(&pieces));
    }
    std::vector<int32_t> ids;
    ids.reserve(pieces.pieces.size() + 2);
    for (const Piece& piece : pieces.pieces) {
      if (piece.token >= 0) {
        ids.push_back(piece.token);
      } else {
        SLUICE_RETURN_IF_ERROR(parts_.model->Encode(piece.text, &ids));
      }
    }
    return parts_.post_processor.Apply(std::move(ids), add_special_tokens);
  }

  std::unique_ptr<DecodeStream> NewDecodeStream(
      bool skip_special_tokens) const override {
    return std::make_unique<Stream>(this, skip_special_tokens);
  }

  int32_t vocab_size() const override {
    return std::max(parts_.model->max_id(), parts_.added.max_id()) + 1;
  }
  std::optional<int32_t> TokenToId(absl::string_view token) const override {
    const auto id = parts_.added.TokenToId(token);
    return id ? id : parts_.model->TokenToId(token);
  }
  std::string IdToToken(int32_t id) const override {
    if (const AddedToken* token = parts_.added.IdToToken(id)) {
      return token->content;
    }
    return std::string(parts_.model->IdToToken(id));
  }
  bool IsSpecial(int32_t id) const override {
    const AddedToken* token = parts_.added.IdToToken(id);
    return token != nullptr && parts_.added.IsSpecial(token->content);
  }
  const std::map<std::string, std::string>& special_tokens() const override {
    return parts_.special_tokens;
  }

 private:
  class Stream : public DecodeStream {
   public:
    Stream(const PartsTokenizer* tokenizer, bool skip_special_tokens)
        : tokenizer_(tokenizer),
          skip_special_tokens_(skip_special_tokens),
          chain_(tokenizer->parts_.decoders) {}
    void Append(int32_t id, std::string* out) override {
      const TokenizerParts& parts = tokenizer_->parts_;
      absl::string_view token;
      if (const AddedToken* added = parts.added.IdToToken(id)) {
        token = parts.added.DecodedForm(id, *added);
      } else if (parts.model->HasId(id)) {
        token = parts.model->IdToToken(id);
      } else {
        return;
      }
      if (skip_special_tokens_ && parts.added.IsSpecial(token)) return;
      chain_.Push(token, out);
    }
    void Flush(std::string* out) override { chain_.Flush(out); }

   private:
    const PartsTokenizer* tokenizer_;
    bool skip_special_tokens_;
    DecodeChain chain_;
  };

  // Sets `pieces` to the text, normalized, with added tokens cut out of it.
  absl::Status CutAddedTokens(absl::string_view text, Pieces* pieces) const {
    if (text.empty()) return absl::OkStatus();
    std::vector<Piece> raw;
    parts_.added.SplitRaw({text, -1, Utf8Length(text[0])}, &raw);
    for (Piece& piece : raw) {
      if (piece.token >= 0) {
        pieces->pieces.push_back(piece);
        continue;
      }
      if (parts_.normalizer != nullptr) {
        NormalizedText normalized{std::string(piece.text), piece.first_bytes};
        normalized.max_bytes += 8 * piece.text.size();
        SLUICE_RETURN_IF_ERROR(parts_.normalizer(&normalized));
        piece.text = pieces->Keep(std::move(normalized.text));
        piece.first_bytes = normalized.first_bytes;
      }
      parts_.added.SplitNormalized(piece, &pieces->pieces);
    }
    return absl::OkStatus();
  }

  TokenizerParts parts_;
};

}  // namespace

std::string Tokenizer::Decode(std::span<const int32_t> ids,
                              bool skip_special_tokens) const {
  std::string text;
  const auto stream = NewDecodeStream(skip_special_tokens);
  for (const int32_t id : ids) stream->Append(id, &text);
  stream->Flush(&text);
  return text;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(
    const std::filesystem::path& model_dir) {
  if (IsGgufFile(model_dir)) {
    SLUICE_ASSIGN_OR_RETURN(TokenizerParts parts, ReadGgufTokenizer(model_dir));
    return std::make_unique<PartsTokenizer>(std::move(parts));
  }
  const auto exists = [&](const char* name) {
    std::error_code error;
    return std::filesystem::exists(model_dir / name, error);
  };
  const auto json = model_dir / "tokenizer.json";
  const auto pieces = model_dir / "tokenizer.model";
  const bool vocab = exists("vocab.json") && exists("merges.txt");
  if (!exists("tokenizer.json") && !exists("tokenizer.model") && !vocab) {
    return NotFound(
        model_dir.string(),
        ": neither tokenizer.json nor tokenizer.model nor vocab.json and "
        "merges.txt; copy them from the model's repository");
  }
  SLUICE_ASSIGN_OR_RETURN(const TokenizerConfig config,
                          ReadTokenizerConfig(model_dir));
  // The class says which of two kinds of files is meant.
  const bool prefers_vocab =
      absl::StartsWith(config.tokenizer_class, "GPT2Tokenizer") ||
      absl::StartsWith(config.tokenizer_class, "Qwen2Tokenizer");
  auto parts = exists("tokenizer.json") ? ReadTokenizerJson(json, config)
               : exists("tokenizer.model") && !(vocab && prefers_vocab)
                   ? ReadSentencePiece(pieces, config)
                   : ReadVocabAndMerges(model_dir, config);
  if (!parts.ok()) return parts.status();
  return std::make_unique<PartsTokenizer>(*std::move(parts));
}

}  // namespace sluice
