#include "runtime/text/tokenizer/pre_tokenizer.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"
#include "runtime/text/tokenizer/patterns/regex.h"
#include "runtime/text/tokenizer/patterns/split.h"
#include "runtime/text/unicode/unicode.h"

namespace sluice {
namespace {

constexpr absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The state that a step works with.
struct Work {
  Pieces* pieces;
  std::vector<Piece> out;
  std::vector<TextRange> matches;  // scratch
};

// A step that calls `cut(piece, work)` for each piece that is text; `cut`
// appends its parts to `work->out`.
template <typename Cut>
PreTokenizer Cutting(Cut cut) {
  return [cut = std::move(cut)](Pieces* pieces) {
    Work work{pieces, {}, {}};
    work.out.reserve(pieces->pieces.size());
    for (const Piece& piece : pieces->pieces) {
      if (piece.token >= 0) {
        work.out.push_back(piece);
      } else {
        SLUICE_RETURN_IF_ERROR(cut(piece, &work));
      }
    }
    pieces->pieces = std::move(work.out);
    return absl::OkStatus();
  };
}

Piece Prepended(absl::string_view prefix, const Piece& piece, Pieces* pieces) {
  Piece result = piece;
  result.text = pieces->Keep(absl::StrCat(prefix, piece.text));
  if (piece.first_bytes > 0) result.first_bytes += prefix.size();
  return result;
}

PreTokenizer SplitBy(std::unique_ptr<Regex> regex, SplitBehavior behavior,
                     bool invert) {
  return Cutting([regex = std::move(regex), behavior, invert](
                     const Piece& piece, Work* work) {
    SLUICE_RETURN_IF_ERROR(regex->FindAll(piece.text, &work->matches));
    SplitPiece(piece, work->matches, invert, behavior, &work->out);
    return absl::OkStatus();
  });
}

// Cuts at characters of a class.
PreTokenizer SplitAt(bool (*matches)(char32_t), SplitBehavior behavior) {
  return Cutting([matches, behavior](const Piece& piece, Work* work) {
    work->matches.clear();
    for (size_t pos = 0; pos < piece.text.size();) {
      const size_t begin = pos;
      if (matches(DecodeUtf8(piece.text, &pos))) {
        work->matches.push_back({begin, pos});
      }
    }
    SplitPiece(piece, work->matches, /*invert=*/false, behavior, &work->out);
    return absl::OkStatus();
  });
}

// Cuts into runs of word characters, and of others except white space.
absl::Status CutWords(const Piece& piece, Work* work) {
  enum { kSpace, kWord, kOther } run = kSpace;
  size_t begin = 0;
  for (size_t pos = 0; pos < piece.text.size();) {
    const size_t at = pos;
    const char32_t c = DecodeUtf8(piece.text, &pos);
    const auto kind = IsWordChar(c) ? kWord : IsWhitespace(c) ? kSpace : kOther;
    if (kind == run) continue;
    if (run != kSpace) work->out.push_back(Slice(piece, begin, at));
    run = kind;
    begin = at;
  }
  if (run != kSpace) {
    work->out.push_back(Slice(piece, begin, piece.text.size()));
  }
  return absl::OkStatus();
}

// Cuts where the script changes. Japanese's scripts are one. A space belongs to
// what is before it; leading ones are left out, as in Hugging Face's.
absl::Status CutScripts(const Piece& piece, Work* work) {
  std::optional<int> last;
  std::optional<size_t> begin;
  for (size_t pos = 0; pos < piece.text.size();) {
    const size_t at = pos;
    const std::optional<int> script = ScriptOf(DecodeUtf8(piece.text, &pos));
    if (!script || script == last) continue;
    last = script;
    if (begin) work->out.push_back(Slice(piece, *begin, at));
    begin = at;
  }
  if (begin) work->out.push_back(Slice(piece, *begin, piece.text.size()));
  return absl::OkStatus();
}

PreTokenizer CutEvery(int64_t length) {
  return Cutting([length](const Piece& piece, Work* work) {
    for (size_t pos = 0; pos < piece.text.size();) {
      const size_t begin = pos;
      for (int64_t i = 0; i < length && pos < piece.text.size(); ++i) {
        pos += Utf8Length(piece.text[pos]);
      }
      work->out.push_back(Slice(piece, begin, pos));
    }
    return absl::OkStatus();
  });
}

enum class PrependScheme { kAlways, kFirst, kNever };

// Returns `piece` with `mark` for each space.
Piece WithMarks(const Piece& piece, const std::string& mark, Pieces* pieces) {
  std::string text;
  text.reserve(piece.text.size() + piece.text.size() / 2);
  Piece result = piece;
  for (size_t i = 0; i < piece.text.size(); ++i) {
    const char c = piece.text[i];
    if (c == ' ') {
      text += mark;
    } else {
      text += c;
    }
    if (i < piece.first_bytes) result.first_bytes = text.size();
  }
  result.text = pieces->Keep(std::move(text));
  return result;
}

PreTokenizer Metaspace(std::string mark, PrependScheme scheme, bool split) {
  return Cutting(
      [mark = std::move(mark), scheme, split](const Piece& piece, Work* work) {
        Piece marked = WithMarks(piece, mark, work->pieces);
        const bool prepend =
            (scheme == PrependScheme::kAlways ||
             (scheme == PrependScheme::kFirst && piece.first_bytes > 0)) &&
            !absl::StartsWith(marked.text, mark);
        if (prepend) marked = Prepended(mark, marked, work->pieces);
        if (!split) {
          work->out.push_back(marked);
          return absl::OkStatus();
        }
        work->matches.clear();
        const absl::string_view text = marked.text;
        for (size_t pos = text.find(mark); pos != text.npos;
             pos = text.find(mark, pos + mark.size())) {
          work->matches.push_back({pos, pos + mark.size()});
        }
        SplitPiece(marked, work->matches, /*invert=*/false,
                   SplitBehavior::kMergedWithNext, &work->out);
        return absl::OkStatus();
      });
}

absl::Status PrependSpaces(Pieces* pieces) {
  for (Piece& piece : pieces->pieces) {
    if (piece.token < 0 && piece.text[0] != ' ') {
      piece = Prepended(" ", piece, pieces);
    }
  }
  return absl::OkStatus();
}

absl::Status BytesToChars(Pieces* pieces) {
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

PreTokenizer Sequence(std::vector<PreTokenizer> steps) {
  return [steps = std::move(steps)](Pieces* pieces) {
    for (const PreTokenizer& step : steps) SLUICE_RETURN_IF_ERROR(step(pieces));
    return absl::OkStatus();
  };
}

struct Context {
  int depth;
  bool keep_bytes;  // if this is a ByteLevel
  bool* bytes;
};

absl::StatusOr<PreTokenizer> CreateAt(const JsonPart& part,
                                      const Context& context);

absl::StatusOr<PreTokenizer> CreateSequence(const JsonPart& part,
                                            const Context& context) {
  if (context.depth >= kMaxNestedParts)
    return part.Invalid("nested too deeply");
  SLUICE_ASSIGN_OR_RETURN(const auto list, part.GetList("pretokenizers"));
  std::vector<PreTokenizer> steps;
  for (const JsonPart& element : list) {
    const bool last = steps.size() + 1 == list.size();
    SLUICE_ASSIGN_OR_RETURN(
        PreTokenizer step,
        CreateAt(element, {context.depth + 1, context.keep_bytes && last,
                           context.bytes}));
    steps.push_back(std::move(step));
  }
  return Sequence(std::move(steps));
}

absl::StatusOr<PreTokenizer> CreateSplit(const JsonPart& part) {
  SLUICE_ASSIGN_OR_RETURN(auto regex, PatternFromJson(part));
  SLUICE_ASSIGN_OR_RETURN(const JsonPart behavior_part, part.Get("behavior"));
  SLUICE_ASSIGN_OR_RETURN(const SplitBehavior behavior,
                          SplitBehaviorFromJson(behavior_part));
  SLUICE_ASSIGN_OR_RETURN(const bool invert, part.BoolOr("invert", false));
  return SplitBy(std::move(regex), behavior, invert);
}

absl::StatusOr<PreTokenizer> CreateDelimiterSplit(const JsonPart& part) {
  SLUICE_ASSIGN_OR_RETURN(const JsonPart delimiter_part, part.Get("delimiter"));
  SLUICE_ASSIGN_OR_RETURN(const char32_t delimiter, delimiter_part.Char());
  std::string text;
  AppendUtf8(delimiter, &text);
  SLUICE_ASSIGN_OR_RETURN(auto regex, Regex::Literal(text));
  return SplitBy(std::move(regex), SplitBehavior::kRemoved, /*invert=*/false);
}

absl::StatusOr<PreTokenizer> CreateMetaspace(const JsonPart& part) {
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
    if (name != "always" && name != "first" && name != "never") {
      return scheme_part->Invalid("unknown scheme \"", name, "\"");
    }
    scheme = name == "always"  ? PrependScheme::kAlways
             : name == "first" ? PrependScheme::kFirst
                               : PrependScheme::kNever;
  }
  std::string mark;
  AppendUtf8(replacement, &mark);
  return Metaspace(std::move(mark), scheme, split);
}

absl::StatusOr<PreTokenizer> ByteLevel(bool add_prefix_space, bool use_regex,
                                       bool keep_bytes) {
  std::vector<PreTokenizer> steps;
  if (add_prefix_space) steps.push_back(PrependSpaces);
  if (use_regex) {
    SLUICE_ASSIGN_OR_RETURN(auto regex, Regex::Compile(kGpt2Pattern));
    steps.push_back(SplitBy(std::move(regex), SplitBehavior::kIsolated,
                            /*invert=*/false));
  }
  if (!keep_bytes) steps.push_back(BytesToChars);
  return Sequence(std::move(steps));
}

absl::StatusOr<PreTokenizer> CreateAt(const JsonPart& part,
                                      const Context& context) {
  SLUICE_ASSIGN_OR_RETURN(const JsonPart type_part, part.Get("type"));
  SLUICE_ASSIGN_OR_RETURN(const std::string type, type_part.String());
  if (type == "Sequence") return CreateSequence(part, context);
  if (type == "Split") return CreateSplit(part);
  if (type == "Metaspace") return CreateMetaspace(part);
  if (type == "Whitespace") return Cutting(CutWords);
  if (type == "ByteLevel") {
    SLUICE_ASSIGN_OR_RETURN(const bool add_prefix_space,
                            part.BoolOr("add_prefix_space", true));
    SLUICE_ASSIGN_OR_RETURN(const bool use_regex,
                            part.BoolOr("use_regex", true));
    if (context.keep_bytes) *context.bytes = true;
    return ByteLevel(add_prefix_space, use_regex, context.keep_bytes);
  }
  if (type == "UnicodeScripts") return Cutting(CutScripts);
  if (type == "CharDelimiterSplit") return CreateDelimiterSplit(part);
  if (type == "WhitespaceSplit") {
    return SplitAt(IsWhitespace, SplitBehavior::kRemoved);
  }
  if (type == "Digits") {
    SLUICE_ASSIGN_OR_RETURN(const bool individual,
                            part.BoolOr("individual_digits", false));
    return SplitAt(IsNumber, individual ? SplitBehavior::kIsolated
                                        : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    SplitBehavior behavior = SplitBehavior::kIsolated;
    SLUICE_ASSIGN_OR_RETURN(const auto behavior_part, part.Find("behavior"));
    if (behavior_part) {
      SLUICE_ASSIGN_OR_RETURN(behavior, SplitBehaviorFromJson(*behavior_part));
    }
    return SplitAt(IsPunctuation, behavior);
  }
  if (type == "FixedLength") {
    SLUICE_ASSIGN_OR_RETURN(const JsonPart length_part, part.Get("length"));
    SLUICE_ASSIGN_OR_RETURN(const int64_t length, length_part.Int(1, 1 << 30));
    return CutEvery(length);
  }
  return type_part.Unimplemented("pre-tokenizer \"", type,
                                 "\" is not supported");
}

}  // namespace

absl::StatusOr<PreTokenizer> CreatePreTokenizer(const JsonPart& part,
                                                bool bytes_at_end,
                                                bool* bytes) {
  *bytes = false;
  return CreateAt(part, {0, bytes_at_end, bytes});
}

absl::StatusOr<PreTokenizer> CreateGpt2PreTokenizer(bool add_prefix_space) {
  return ByteLevel(add_prefix_space, /*use_regex=*/true, /*keep_bytes=*/true);
}

}  // namespace sluice
