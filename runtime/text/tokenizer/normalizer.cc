#include "runtime/text/tokenizer/normalizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"
#include "runtime/text/tokenizer/charsmap.h"
#include "runtime/text/tokenizer/patterns/regex.h"
#include "runtime/text/tokenizer/patterns/split.h"
#include "runtime/text/unicode/unicode.h"

namespace sluice {
namespace {

Normalizer Unicode(NormalForm form) {
  return [form](NormalizedText* text) {
    std::string out = Normalized(form, text->text);
    if (text->first_bytes > 0 && !out.empty()) {
      // The result of the first character alone, which marks behind it may
      // still have changed.
      const size_t alone =
          Normalized(form,
                     absl::string_view(text->text).substr(0, text->first_bytes))
              .size();
      const size_t min = Utf8Length(out[0]);
      const bool whole = alone < out.size() && !IsUtf8Continuation(out[alone]);
      text->first_bytes =
          whole || alone == out.size() ? std::max(alone, min) : min;
    }
    text->text = std::move(out);
    return absl::OkStatus();
  };
}

Normalizer Prepend(std::string prefix) {
  return [prefix = std::move(prefix)](NormalizedText* text) {
    if (text->text.empty()) return absl::OkStatus();
    text->text.insert(0, prefix);
    if (text->first_bytes > 0) text->first_bytes += prefix.size();
    return absl::OkStatus();
  };
}

absl::Status ReplaceMatches(const Regex& regex, const std::string& content,
                            NormalizedText* text) {
  if (text->text.empty()) return absl::OkStatus();
  std::vector<TextRange> matches;
  SLUICE_RETURN_IF_ERROR(regex.FindAll(text->text, &matches));
  if (matches.empty()) return absl::OkStatus();
  const std::string& in = text->text;
  if (matches.size() > text->max_bytes / (content.size() + 1)) {
    return absl::ResourceExhaustedError(
        "the normalizer makes the text too long");
  }
  std::string out;
  out.reserve(in.size());
  size_t done = 0;
  size_t first_bytes = 0;
  const auto copy = [&](size_t end) {
    if (text->first_bytes > done) {
      first_bytes = out.size() + std::min(end, text->first_bytes) - done;
    }
    out.append(in, done, end - done);
    done = end;
  };
  for (const TextRange& match : matches) {
    copy(match.begin);
    out += content;
    // New characters stem from the last one that they replace.
    const size_t last = match.end > 0 ? PreviousUtf8(in, match.end) : 0;
    if (last < text->first_bytes) first_bytes = out.size();
    done = match.end;
  }
  copy(in.size());
  text->text = std::move(out);
  text->first_bytes = first_bytes;
  return absl::OkStatus();
}

Normalizer Strip(bool left, bool right) {
  return [left, right](NormalizedText* text) {
    const std::string& in = text->text;
    size_t begin = 0;
    while (left && begin < in.size()) {
      size_t next = begin;
      if (!IsWhitespace(DecodeUtf8(in, &next))) break;
      begin = next;
    }
    size_t end = in.size();
    while (right && end > begin) {
      const size_t previous = PreviousUtf8(in, end);
      size_t pos = previous;
      if (!IsWhitespace(DecodeUtf8(in, &pos))) break;
      end = previous;
    }
    text->first_bytes =
        text->first_bytes > begin ? text->first_bytes - begin : 0;
    text->text = in.substr(begin, end - begin);
    text->first_bytes = std::min(text->first_bytes, text->text.size());
    return absl::OkStatus();
  };
}

// Rewrites each character by itself.
template <typename Rewrite>
Normalizer EachCharacter(Rewrite rewrite) {
  return [rewrite](NormalizedText* text) {
    std::string out;
    out.reserve(text->text.size());
    size_t first_bytes = 0;
    for (size_t pos = 0; pos < text->text.size();) {
      const bool first = pos < text->first_bytes;
      rewrite(DecodeUtf8(text->text, &pos), &out);
      if (first) first_bytes = out.size();
    }
    text->text = std::move(out);
    text->first_bytes = first_bytes;
    return absl::OkStatus();
  };
}

absl::Status BytesToChars(NormalizedText* text) {
  std::string out;
  const absl::string_view in = text->text;
  AppendByteChars(in.substr(0, text->first_bytes), &out);
  const size_t first_bytes = out.size();
  AppendByteChars(in.substr(text->first_bytes), &out);
  text->text = std::move(out);
  text->first_bytes = first_bytes;
  return absl::OkStatus();
}

// Removes controls and makes other blanks spaces, as SentencePiece's "nmt"
// rules begin.
void AppendNmt(char32_t c, std::string* out) {
  if ((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) ||
      c == 0x7F || c == 0x8F || c == 0x9F) {
    return;
  }
  const bool blank = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D ||
                     c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                     c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                     c == 0xFFFD;
  AppendUtf8(blank ? U' ' : c, out);
}

absl::StatusOr<Normalizer> CreateAt(const JsonPart& part, int depth);

absl::StatusOr<Normalizer> CreateSequence(const JsonPart& part, int depth) {
  if (depth >= kMaxNestedParts) return part.Invalid("nested too deeply");
  SLUICE_ASSIGN_OR_RETURN(const auto list, part.GetList("normalizers"));
  std::vector<Normalizer> steps;
  for (const JsonPart& element : list) {
    SLUICE_ASSIGN_OR_RETURN(Normalizer step, CreateAt(element, depth + 1));
    steps.push_back(std::move(step));
  }
  return [steps = std::move(steps)](NormalizedText* text) {
    for (const Normalizer& step : steps) SLUICE_RETURN_IF_ERROR(step(text));
    return absl::OkStatus();
  };
}

absl::StatusOr<Normalizer> CreateAt(const JsonPart& part, int depth) {
  SLUICE_ASSIGN_OR_RETURN(const JsonPart type_part, part.Get("type"));
  SLUICE_ASSIGN_OR_RETURN(const std::string type, type_part.String());
  if (type == "Sequence") return CreateSequence(part, depth);
  if (type == "NFC") return Unicode(NormalForm::kNfc);
  if (type == "NFD") return Unicode(NormalForm::kNfd);
  if (type == "NFKC") return Unicode(NormalForm::kNfkc);
  if (type == "NFKD") return Unicode(NormalForm::kNfkd);
  if (type == "Lowercase") return EachCharacter(AppendLowercase);
  if (type == "StripAccents") {
    return EachCharacter([](char32_t c, std::string* out) {
      if (!IsMark(c)) AppendUtf8(c, out);
    });
  }
  if (type == "ByteLevel") return Normalizer(BytesToChars);
  if (type == "Nmt") return EachCharacter(AppendNmt);
  if (type == "Precompiled") {
    SLUICE_ASSIGN_OR_RETURN(const std::string encoded,
                            part.GetString("precompiled_charsmap"));
    std::string bytes;
    if (!absl::Base64Unescape(encoded, &bytes)) {
      return part.Invalid("precompiled_charsmap is not Base64");
    }
    SLUICE_ASSIGN_OR_RETURN(Charsmap map,
                            Annotate(Charsmap::Parse(bytes), part.where()));
    return CharsmapNormalizer(std::move(map));
  }
  if (type == "Prepend") {
    SLUICE_ASSIGN_OR_RETURN(std::string text, part.GetString("prepend"));
    return Prepend(std::move(text));
  }
  if (type == "Replace") {
    SLUICE_ASSIGN_OR_RETURN(std::string content, part.GetString("content"));
    SLUICE_ASSIGN_OR_RETURN(auto regex, PatternFromJson(part));
    return [regex = std::move(regex),
            content = std::move(content)](NormalizedText* text) {
      return ReplaceMatches(*regex, content, text);
    };
  }
  if (type == "Strip") {
    SLUICE_ASSIGN_OR_RETURN(const bool left, part.BoolOr("strip_left", true));
    SLUICE_ASSIGN_OR_RETURN(const bool right, part.BoolOr("strip_right", true));
    return Strip(left, right);
  }
  return type_part.Unimplemented("normalizer \"", type, "\" is not supported");
}

}  // namespace

absl::StatusOr<Normalizer> CreateNormalizer(const JsonPart& part) {
  return CreateAt(part, 0);
}

}  // namespace sluice
