#include "runtime/text/tokenizer/pre_tokenizer.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"
#include "runtime/text/tokenizer/patterns/regex.h"
#include "runtime/text/tokenizer/patterns/regex_json.h"
#include "runtime/text/tokenizer/patterns/split.h"
#include "runtime/text/unicode/unicode.h"

namespace sluice {
namespace {

constexpr int kMaxDepth = 32;
constexpr absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Calls `fn(piece, out)` for each piece that is text; `fn` appends what becomes
// of it.
template <typename Fn>
absl::Status ForEachText(Pieces* pieces, const Fn& fn) {
  std::vector<Piece> out;
  out.reserve(pieces->pieces.size());
  for (const Piece& piece : pieces->pieces) {
    if (piece.token >= 0) {
      out.push_back(piece);
      continue;
    }
    SLUICE_RETURN_IF_ERROR(fn(piece, &out));
  }
  pieces->pieces = std::move(out);
  return absl::OkStatus();
}

Piece Prepended(absl::string_view prefix, const Piece& piece, Pieces* pieces) {
  Piece result = piece;
  result.text = pieces->Keep(absl::StrCat(prefix, piece.text));
  if (piece.first_bytes > 0) result.first_bytes += prefix.size();
  return result;
}

class SequencePreTokenizer : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(
      std::vector<std::unique_ptr<PreTokenizer>> steps)
      : steps_(std::move(steps)) {}
  absl::Status Apply(Pieces* pieces) const override {
    for (const auto& step : steps_) SLUICE_RETURN_IF_ERROR(step->Apply(pieces));
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

class SplitPreTokenizer : public PreTokenizer {
 public:
  SplitPreTokenizer(std::unique_ptr<Regex> regex, SplitBehavior behavior,
                    bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}
  absl::Status Apply(Pieces* pieces) const override {
    std::vector<TextRange> matches;
    return ForEachText(
        pieces, [&](const Piece& piece, std::vector<Piece>* out) {
          SLUICE_RETURN_IF_ERROR(regex_->FindAll(piece.text, &matches));
          SplitPiece(piece, matches, invert_, behavior_, out);
          return absl::OkStatus();
        });
  }

 private:
  std::unique_ptr<Regex> regex_;
  SplitBehavior behavior_;
  bool invert_;
};

// Cuts at characters of a class.
class CharSplitPreTokenizer : public PreTokenizer {
 public:
  using Class = bool (*)(char32_t);
  CharSplitPreTokenizer(Class matches, SplitBehavior behavior)
      : matches_(matches), behavior_(behavior) {}
  absl::Status Apply(Pieces* pieces) const override {
    std::vector<TextRange> ranges;
    return ForEachText(
        pieces, [&](const Piece& piece, std::vector<Piece>* out) {
          ranges.clear();
          for (size_t pos = 0; pos < piece.text.size();) {
            const size_t begin = pos;
            if (matches_(DecodeUtf8(piece.text, &pos))) {
              ranges.push_back({begin, pos});
            }
          }
          SplitPiece(piece, ranges, /*invert=*/false, behavior_, out);
          return absl::OkStatus();
        });
  }

 private:
  Class matches_;
  SplitBehavior behavior_;
};

// Runs of word characters, and runs of what is neither that nor white space.
class WhitespacePreTokenizer : public PreTokenizer {
 public:
  absl::Status Apply(Pieces* pieces) const override {
    return ForEachText(
        pieces, [&](const Piece& piece, std::vector<Piece>* out) {
          enum { kSpace, kWord, kOther } run = kSpace;
          size_t begin = 0;
          for (size_t pos = 0; pos < piece.text.size();) {
            const size_t at = pos;
            const char32_t c = DecodeUtf8(piece.text, &pos);
            const auto kind = IsWordChar(c)     ? kWord
                              : IsWhitespace(c) ? kSpace
                                                : kOther;
            if (kind == run) continue;
            if (run != kSpace) out->push_back(Slice(piece, begin, at));
            run = kind;
            begin = at;
          }
          if (run != kSpace) {
            out->push_back(Slice(piece, begin, piece.text.size()));
          }
          return absl::OkStatus();
        });
  }
};

class FixedLengthPreTokenizer : public PreTokenizer {
 public:
  explicit FixedLengthPreTokenizer(size_t length) : length_(length) {}
  absl::Status Apply(Pieces* pieces) const override {
    return ForEachText(
        pieces, [&](const Piece& piece, std::vector<Piece>* out) {
          for (size_t pos = 0; pos < piece.text.size();) {
            const size_t begin = pos;
            for (size_t i = 0; i < length_ && pos < piece.text.size(); ++i) {
              pos += Utf8Length(piece.text[pos]);
            }
            out->push_back(Slice(piece, begin, pos));
          }
          return absl::OkStatus();
        });
  }

 private:
  size_t length_;
};

enum class PrependScheme { kAlways, kFirst, kNever };

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  MetaspacePreTokenizer(std::string replacement, PrependScheme scheme,
                        bool split)
      : replacement_(std::move(replacement)), scheme_(scheme), split_(split) {}
  absl::Status Apply(Pieces* pieces) const override {
    std::vector<TextRange> matches;
    return ForEachText(
        pieces, [&](const Piece& piece, std::vector<Piece>* out) {
          Piece replaced = Replaced(piece, pieces);
          const bool prepend =
              (scheme_ == PrependScheme::kAlways ||
               (scheme_ == PrependScheme::kFirst && piece.first_bytes > 0)) &&
              !absl::StartsWith(replaced.text, replacement_);
          if (prepend) replaced = Prepended(replacement_, replaced, pieces);
          if (!split_) {
            out->push_back(replaced);
            return absl::OkStatus();
          }
          matches.clear();
          const absl::string_view text = replaced.text;
          for (size_t pos = text.find(replacement_); pos != text.npos;
               pos = text.find(replacement_, pos + replacement_.size())) {
            matches.push_back({pos, pos + replacement_.size()});
          }
          SplitPiece(replaced, matches, /*invert=*/false,
                     SplitBehavior::kMergedWithNext, out);
          return absl::OkStatus();
        });
  }

 private:
  Piece Replaced(const Piece& piece, Pieces* pieces) const {
    std::string text;
    text.reserve(piece.text.size() + piece.text.size() / 2);
    Piece result = piece;
    for (size_t i = 0; i < piece.text.size(); ++i) {
      const char c = piece.text[i];
      if (c == ' ') {
        text += replacement_;
      } else {
        text += c;
      }
      if (i < piece.first_bytes) result.first_bytes = text.size();
    }
    result.text = pieces->Keep(std::move(text));
    return result;
  }

  std::string replacement_;
  PrependScheme scheme_;
  bool split_;
};

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, std::unique_ptr<Regex> regex,
                        bool keep_bytes)
      : add_prefix_space_(add_prefix_space),
        regex_(std::move(regex)),
        keep_bytes_(keep_bytes) {}
  absl::Status Apply(Pieces* pieces) const override {
    if (add_prefix_space_) {
      for (Piece& piece : pieces->pieces) {
        if (piece.token < 0 && piece.text[0] != ' ') {
          piece = Prepended(" ", piece, pieces);
        }
      }
    }
    if (regex_ != nullptr) {
      std::vector<TextRange> matches;
      SLUICE_RETURN_IF_ERROR(
          ForEachText(pieces, [&](const Piece& piece, std::vector<Piece>* out) {
            SLUICE_RETURN_IF_ERROR(regex_->FindAll(piece.text, &matches));
            SplitPiece(piece, matches, /*invert=*/false,
                       SplitBehavior::kIsolated, out);
            return absl::OkStatus();
          }));
    }
    if (keep_bytes_) return absl::OkStatus();
    for (Piece& piece : pieces->pieces) {
      if (piece.token >= 0) continue;
      std::string text;
      AppendByteChars(piece.text.substr(0, piece.first_bytes), &text);
      const size_t first_bytes = text.size();
      AppendByteChars(piece.text.substr(piece.first_bytes), &text);
      piece = {pieces->Keep(std::move(text)), -1, first_bytes};
    }
    return absl::OkStatus();
  }

 private:
  bool add_prefix_space_;
  std::unique_ptr<Regex> regex_;
  bool keep_bytes_;
};

struct Context {
  int depth;
  bool keep_bytes;  // if this is a ByteLevel
  bool* bytes;
};

absl::StatusOr<std::unique_ptr<PreTokenizer>> CreateAt(const JsonPart& part,
                                                       const Context& context);

absl::StatusOr<std::unique_ptr<PreTokenizer>> CreateSequence(
    const JsonPart& part, const Context& context) {
  if (context.depth >= kMaxDepth) return part.Invalid("nested too deeply");
  SLUICE_ASSIGN_OR_RETURN(const JsonPart list, part.Get("pretokenizers"));
  SLUICE_RETURN_IF_ERROR(list.ExpectArray());
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  for (size_t i = 0; i < list.value().size(); ++i) {
    const bool last = i + 1 == list.value().size();
    SLUICE_ASSIGN_OR_RETURN(
        auto step,
        CreateAt(list.At(i), {context.depth + 1, context.keep_bytes && last,
                              context.bytes}));
    steps.push_back(std::move(step));
  }
  return std::make_unique<SequencePreTokenizer>(std::move(steps));
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> CreateSplit(
    const JsonPart& part) {
  SLUICE_ASSIGN_OR_RETURN(auto regex, PatternFromJson(part));
  SLUICE_ASSIGN_OR_RETURN(const JsonPart behavior_part, part.Get("behavior"));
  SLUICE_ASSIGN_OR_RETURN(const SplitBehavior behavior,
                          SplitBehaviorFromJson(behavior_part));
  SLUICE_ASSIGN_OR_RETURN(const bool invert, part.BoolOr("invert", false));
  return std::make_unique<SplitPreTokenizer>(std::move(regex), behavior,
                                             invert);
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> CreateMetaspace(
    const JsonPart& part) {
  SLUICE_ASSIGN_OR_RETURN(const JsonPart replacement_part,
                          part.Get("replacement"));
  SLUICE_ASSIGN_OR_RETURN(const char32_t replacement, replacement_part.Char());
  SLUICE_ASSIGN_OR_RETURN(const bool add_prefix_space,
                          part.BoolOr("add_prefix_space", true));
  SLUICE_ASSIGN_OR_RETURN(const bool split, part.BoolOr("split", true));
  SLUICE_ASSIGN_OR_RETURN(const auto scheme_part, part.Find("prepend_scheme"));
  PrependScheme scheme =
      add_prefix_space ? PrependScheme::kAlways : PrependScheme::kNever;
  if (scheme_part) {
    SLUICE_ASSIGN_OR_RETURN(const std::string name, scheme_part->String());
    if (name == "always") {
      scheme = PrependScheme::kAlways;
    } else if (name == "first") {
      scheme = PrependScheme::kFirst;
    } else if (name == "never") {
      scheme = PrependScheme::kNever;
    } else {
      return scheme_part->Invalid(
          absl::StrCat("unknown scheme \"", name, "\""));
    }
  }
  std::string text;
  AppendUtf8(replacement, &text);
  return std::make_unique<MetaspacePreTokenizer>(std::move(text), scheme,
                                                 split);
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeByteLevel(
    bool add_prefix_space, bool use_regex, bool keep_bytes) {
  std::unique_ptr<Regex> regex;
  if (use_regex) {
    SLUICE_ASSIGN_OR_RETURN(regex, Regex::Compile(kGpt2Pattern));
  }
  return std::make_unique<ByteLevelPreTokenizer>(add_prefix_space,
                                                 std::move(regex), keep_bytes);
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> CreateAt(const JsonPart& part,
                                                       const Context& context) {
  SLUICE_ASSIGN_OR_RETURN(const JsonPart type_part, part.Get("type"));
  SLUICE_ASSIGN_OR_RETURN(const std::string type, type_part.String());
  if (type == "Sequence") return CreateSequence(part, context);
  if (type == "Split") return CreateSplit(part);
  if (type == "Metaspace") return CreateMetaspace(part);
  if (type == "Whitespace") return std::make_unique<WhitespacePreTokenizer>();
  if (type == "ByteLevel") {
    SLUICE_ASSIGN_OR_RETURN(const bool add_prefix_space,
                            part.BoolOr("add_prefix_space", true));
    SLUICE_ASSIGN_OR_RETURN(const bool use_regex,
                            part.BoolOr("use_regex", true));
    if (context.keep_bytes) *context.bytes = true;
    return MakeByteLevel(add_prefix_space, use_regex, context.keep_bytes);
  }
  if (type == "WhitespaceSplit") {
    return std::make_unique<CharSplitPreTokenizer>(IsWhitespace,
                                                   SplitBehavior::kRemoved);
  }
  if (type == "Digits") {
    SLUICE_ASSIGN_OR_RETURN(const bool individual,
                            part.BoolOr("individual_digits", false));
    return std::make_unique<CharSplitPreTokenizer>(
        IsNumber,
        individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    SplitBehavior behavior = SplitBehavior::kIsolated;
    SLUICE_ASSIGN_OR_RETURN(const auto behavior_part, part.Find("behavior"));
    if (behavior_part) {
      SLUICE_ASSIGN_OR_RETURN(behavior, SplitBehaviorFromJson(*behavior_part));
    }
    return std::make_unique<CharSplitPreTokenizer>(IsPunctuation, behavior);
  }
  if (type == "FixedLength") {
    SLUICE_ASSIGN_OR_RETURN(const JsonPart length_part, part.Get("length"));
    SLUICE_ASSIGN_OR_RETURN(const int64_t length, length_part.Int(1, 1 << 30));
    return std::make_unique<FixedLengthPreTokenizer>(length);
  }
  return type_part.Unimplemented(
      absl::StrCat("pre-tokenizer \"", type, "\" is not supported"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(
    const JsonPart& part, bool bytes_at_end, bool* bytes) {
  *bytes = false;
  return CreateAt(part, {0, bytes_at_end, bytes});
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::CreateByteLevel(
    bool add_prefix_space) {
  return MakeByteLevel(add_prefix_space, /*use_regex=*/true,
                       /*keep_bytes=*/true);
}

}  // namespace sluice
