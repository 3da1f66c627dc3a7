#include "runtime/text/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"
#include "runtime/text/unicode/python_text.h"

namespace sluice::jinja {
namespace {

int DigitValue(char c) {
  if (absl::ascii_isdigit(c)) return c - '0';
  return absl::ascii_isxdigit(c) ? absl::ascii_tolower(c) - 'a' + 10 : 99;
}

class Lexer {
 public:
  explicit Lexer(absl::string_view source)
      : source_(absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}})) {
    if (absl::EndsWith(source_, "\n")) source_.pop_back();
  }

  absl::StatusOr<std::vector<Token>> Run() {
    while (pos_ < source_.size()) SLUICE_RETURN_IF_ERROR(LexRoot());
    tokens_.push_back({TokenKind::kEof, line_, "", {}});
    return std::move(tokens_);
  }

 private:
  absl::Status Error(absl::string_view message) const {
    return InvalidArgument("line ", line_, ": ", message);
  }
  bool At(absl::string_view text) const {
    return source_.compare(pos_, text.size(), text.data(), text.size()) == 0;
  }
  char Peek(size_t ahead = 0) const {
    return pos_ + ahead < source_.size() ? source_[pos_ + ahead] : '\0';
  }
  // Advances to `end`, counting lines.
  void Advance(size_t end) {
    line_ += static_cast<int>(
        std::count(source_.begin() + pos_, source_.begin() + end, '\n'));
    pos_ = end;
    if (pos_ > 0) line_starting_ = source_[pos_ - 1] == '\n';
  }
  // End of the white space that starts at `pos`.
  size_t SkipSpace(size_t pos) const {
    while (pos < source_.size()) {
      size_t next = pos;
      if (!IsSpace(DecodeUtf8(source_, &next))) break;
      pos = next;
    }
    return pos;
  }
  void Push(TokenKind kind, std::string text = "") {
    tokens_.push_back({kind, line_, std::move(text), {}});
  }

  // The text before a tag, trimmed according to the tag's control sign.
  std::string TrimmedText(size_t begin, size_t end, char sign,
                          bool is_variable) const {
    absl::string_view text(source_);
    text = text.substr(begin, end - begin);
    if (sign == '-') return std::string(Strip(text, nullptr, false, true));
    if (sign == '+' || is_variable) return std::string(text);
    // lstrip_blocks removes white space between the line's start and the tag.
    const size_t newline = text.rfind('\n');
    const size_t line_start =
        newline == absl::string_view::npos ? 0 : newline + 1;
    if (line_start == 0 && !line_starting_) return std::string(text);
    if (!Strip(text.substr(line_start), nullptr, true, false).empty()) {
      return std::string(text);
    }
    return std::string(text.substr(0, line_start));
  }

  // Returns the position past the keyword and the space around it if a tag
  // `keyword` ("raw", "endraw") starts at `pos`; otherwise npos.
  size_t MatchRawTag(size_t pos, absl::string_view keyword) const {
    if (source_.compare(pos, 2, "{%") != 0) return std::string::npos;
    pos += 2;
    pos = SkipSpace(SignAt(pos) != '\0' ? pos + 1 : pos);
    if (source_.compare(pos, keyword.size(), keyword.data(), keyword.size()) !=
        0) {
      return std::string::npos;
    }
    return SkipSpace(pos + keyword.size());
  }

  char SignAt(size_t pos) const {
    return pos < source_.size() && (source_[pos] == '-' || source_[pos] == '+')
               ? source_[pos]
               : '\0';
  }

  // Returns the position past "-%}" and white space, "%}" and, if `trim`, one
  // newline, or "+%}", which keeps the newline; npos if there is no end here.
  size_t MatchEnd(size_t pos, absl::string_view end, bool trim) const {
    const auto at = [&](size_t where) {
      return source_.compare(where, end.size(), end.data(), end.size()) == 0;
    };
    if (pos < source_.size() && source_[pos] == '-' && at(pos + 1)) {
      return SkipSpace(pos + 1 + end.size());
    }
    if (trim && pos < source_.size() && source_[pos] == '+' && at(pos + 1)) {
      return pos + 1 + end.size();
    }
    if (!at(pos)) return std::string::npos;
    pos += end.size();
    if (trim && pos < source_.size() && source_[pos] == '\n') ++pos;
    return pos;
  }

  absl::Status LexRoot() {
    size_t tag = pos_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos) {
        Push(TokenKind::kData, source_.substr(pos_));
        Advance(source_.size());
        return absl::OkStatus();
      }
      const char next = tag + 1 < source_.size() ? source_[tag + 1] : '\0';
      if (next == '%' || next == '{' || next == '#') break;
      ++tag;
    }
    const char type = source_[tag + 1];
    const char sign = SignAt(tag + 2);
    std::string text = TrimmedText(pos_, tag, sign, type == '{');
    if (!text.empty()) Push(TokenKind::kData, std::move(text));

    if (type == '%') {
      if (const size_t inside = MatchRawTag(tag, "raw");
          inside != std::string::npos) {
        // The newline after the opening tag is kept, as jinja2 does.
        const size_t end = MatchEnd(inside, "%}", false);
        if (end != std::string::npos) return LexRaw(tag, end);
      }
    }
    Advance(tag + 2 + (sign != '\0' ? 1 : 0));
    if (type == '#') {
      for (size_t i = source_.find("#}", pos_); i != std::string::npos;
           i = source_.find("#}", i + 1)) {
        const bool signed_end = i > pos_ && SignAt(i - 1) != '\0';
        Advance(MatchEnd(signed_end ? i - 1 : i, "#}", true));
        return absl::OkStatus();
      }
      return Error("missing end of comment tag");
    }
    Push(type == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin);
    return LexExpression(type == '%');
  }

  absl::Status LexRaw(size_t tag, size_t begin) {
    Advance(begin);
    for (size_t i = source_.find("{%", pos_); i != std::string::npos;
         i = source_.find("{%", i + 1)) {
      const size_t inside = MatchRawTag(i, "endraw");
      if (inside == std::string::npos) continue;
      const size_t end = MatchEnd(inside, "%}", true);
      if (end == std::string::npos) continue;
      std::string text = TrimmedText(pos_, i, SignAt(i + 2), false);
      if (!text.empty()) Push(TokenKind::kData, std::move(text));
      Advance(end);
      return absl::OkStatus();
    }
    return Error("missing end of raw directive");
  }

  absl::Status LexExpression(bool is_block) {
    const absl::string_view end_text = is_block ? "%}" : "}}";
    std::string open;  // expected closing brackets
    while (pos_ < source_.size()) {
      if (open.empty()) {
        const size_t end = MatchEnd(pos_, end_text, is_block);
        if (end != std::string::npos) {
          Push(is_block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd);
          Advance(end);
          return absl::OkStatus();
        }
      }
      if (const size_t end = SkipSpace(pos_); end != pos_) {
        Advance(end);
        continue;
      }
      if (absl::ascii_isdigit(Peek())) {
        SLUICE_RETURN_IF_ERROR(LexNumber());
        continue;
      }
      size_t next = pos_;
      const uint32_t c = DecodeUtf8(source_, &next);
      if (IsIdentifierPart(c)) {
        SLUICE_RETURN_IF_ERROR(LexName());
        continue;
      }
      if (c == '\'' || c == '"') {
        SLUICE_RETURN_IF_ERROR(LexString());
        continue;
      }
      SLUICE_RETURN_IF_ERROR(LexOperator(open));
    }
    return absl::OkStatus();  // the parser complains about the missing end
  }

  absl::Status LexName() {
    size_t end = pos_;
    bool first = true, valid = true;
    while (end < source_.size()) {
      size_t next = end;
      const uint32_t c = DecodeUtf8(source_, &next);
      if (!IsIdentifierPart(c)) break;
      if (first) valid = IsIdentifierStart(c);
      first = false;
      end = next;
    }
    if (!valid) return Error("invalid character in identifier");
    Push(TokenKind::kName, source_.substr(pos_, end - pos_));
    Advance(end);
    return absl::OkStatus();
  }

  // Returns the end of digits with single underscores between them.
  size_t SkipDigits(size_t pos) const {
    while (pos < source_.size() &&
           (absl::ascii_isdigit(source_[pos]) ||
            (source_[pos] == '_' && pos + 1 < source_.size() &&
             absl::ascii_isdigit(source_[pos + 1])))) {
      ++pos;
    }
    return pos;
  }

  absl::Status LexNumber() {
    const char radix_letter = Peek(1) | 0x20;
    const int radix = Peek() != '0'         ? 10
                      : radix_letter == 'x' ? 16
                      : radix_letter == 'o' ? 8
                      : radix_letter == 'b' ? 2
                                            : 10;
    if (radix != 10) {
      size_t end = pos_ + 2;
      Int value = 0;
      while (end < source_.size() &&
             (source_[end] == '_' || DigitValue(source_[end]) < radix)) {
        if (source_[end] != '_')
          value = value * radix + DigitValue(source_[end]);
        if (value > std::numeric_limits<uint64_t>::max()) {
          return Error("integer is too large");
        }
        ++end;
      }
      if (end == pos_ + 2) return Error("a number has no digits");
      PushNumber(Value(value), end);
      return absl::OkStatus();
    }
    size_t end = SkipDigits(pos_);
    bool is_float = false;
    const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';
    if (!after_dot && end + 1 < source_.size() && source_[end] == '.' &&
        absl::ascii_isdigit(source_[end + 1])) {
      is_float = true;
      end = SkipDigits(end + 1);
    }
    if (!after_dot && end < source_.size() &&
        (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() &&
          (source_[exponent] == '+' || source_[exponent] == '-')) {
        ++exponent;
      }
      if (exponent < source_.size() && absl::ascii_isdigit(source_[exponent])) {
        is_float = true;
        end = SkipDigits(exponent);
      }
    }
    std::string digits = source_.substr(pos_, end - pos_);
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    if (is_float) {
      PushNumber(Value(std::strtod(digits.c_str(), nullptr)), end);
      return absl::OkStatus();
    }
    uint64_t value = 0;
    const auto [rest, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc()) return Error("integer is too large");
    PushNumber(Value(static_cast<Int>(value)), end);
    return absl::OkStatus();
  }

  void PushNumber(Value value, size_t end) {
    const TokenKind kind =
        value.IsFloat() ? TokenKind::kFloat : TokenKind::kInteger;
    tokens_.push_back(
        {kind, line_, source_.substr(pos_, end - pos_), std::move(value)});
    Advance(end);
  }

  absl::Status LexString() {
    const char quote = Peek();
    std::string text;
    size_t i = pos_ + 1;
    while (i < source_.size() && source_[i] != quote) {
      if (source_[i] != '\\') {
        text += source_[i++];
        continue;
      }
      if (i + 1 >= source_.size()) break;
      SLUICE_RETURN_IF_ERROR(Unescape(i, text));
    }
    if (i >= source_.size()) {
      return Error(absl::StrCat("unexpected char ", std::string(1, quote),
                                ": the string does not end"));
    }
    Push(TokenKind::kString, std::move(text));
    Advance(i + 1);
    return absl::OkStatus();
  }

  // Decodes one of Python's escapes ("unicode-escape"). Moves `i` past it.
  absl::Status Unescape(size_t& i, std::string& text) {
    const char c = source_[i + 1];
    static constexpr absl::string_view kFrom = "\\'\"abfnrtv\n";
    static constexpr absl::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t k = kFrom.find(c); k != absl::string_view::npos) {
      if (k < kTo.size()) text += kTo[k];  // a newline vanishes
      i += 2;
      return absl::OkStatus();
    }
    if (c >= '0' && c <= '7') {
      uint32_t code = 0;
      size_t end = i + 1;
      while (end < source_.size() && end < i + 4 && source_[end] >= '0' &&
             source_[end] <= '7') {
        code = code * 8 + static_cast<uint32_t>(source_[end++] - '0');
      }
      AppendUtf8(code, &text);
      i = end;
      return absl::OkStatus();
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      uint64_t code = 0;
      for (size_t k = 0; k < digits; ++k) {
        const int digit =
            i + 2 + k < source_.size() ? DigitValue(source_[i + 2 + k]) : 99;
        if (digit > 15) {
          return Error(absl::StrCat("truncated \\", std::string(1, c),
                                    " escape in a string"));
        }
        code = code * 16 + static_cast<uint64_t>(digit);
      }
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
        return Error("a string escape is not a Unicode character");
      }
      AppendUtf8(static_cast<uint32_t>(code), &text);
      i += 2 + digits;
      return absl::OkStatus();
    }
    if (c == 'N') {
      return Unimplemented("line ", line_,
                           ": \\N{...} in a string is not supported");
    }
    text += '\\';  // not an escape: both characters stay
    ++i;
    return absl::OkStatus();
  }

  absl::Status LexOperator(std::string& open) {
    static constexpr absl::string_view kLong[] = {
        "//", "**", "==", "!=", ">=", "<="};
    std::string text(1, Peek());
    for (const absl::string_view op : kLong) {
      if (At(op)) text = std::string(op);
    }
    if (text.size() == 1 &&
        absl::string_view("+-/*%~[](){}><=.:|,;").find(text[0]) ==
            absl::string_view::npos) {
      return Error(
          absl::StrCat("unexpected character ",
                       QuotePython(source_.substr(pos_, Utf8Length(Peek())))));
    }
    if (text == "(" || text == "[" || text == "{") {
      open += text == "(" ? ')' : text == "[" ? ']' : '}';
    } else if (text == ")" || text == "]" || text == "}") {
      if (open.empty()) return Error(absl::StrCat("unexpected '", text, "'"));
      if (open.back() != text[0]) {
        return Error(absl::StrCat("unexpected '", text, "', expected '",
                                  std::string(1, open.back()), "'"));
      }
      open.pop_back();
    }
    const size_t end = pos_ + text.size();
    Push(TokenKind::kOperator, std::move(text));
    Advance(end);
    return absl::OkStatus();
  }

  std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) {
  if (FindInvalidUtf8(source)) {
    return absl::InvalidArgumentError("the template is not valid UTF-8");
  }
  return Lexer(source).Run();
}

}  // namespace sluice::jinja
