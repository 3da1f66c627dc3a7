#include "runtime/text/jinja/text_ops.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "common/text/utf8.h"
#include "runtime/text/jinja/builtins/builtins.h"
#include "runtime/text/jinja/services.h"
#include "runtime/text/unicode/python_text.h"

namespace sluice::jinja {

Value ReplaceText(Services& in, const std::string& text,
                  const std::string& from, const std::string& to, Int count) {
  if (!in.ChargeBytes(text.size())) return {};
  const size_t limit =
      count < 0 ? SIZE_MAX : static_cast<size_t>(std::min(count, Int{1} << 62));
  // The byte offsets of replacements.
  std::vector<size_t> places;
  if (from.empty()) {
    for (size_t pos = 0; places.size() < limit;) {
      places.push_back(pos);
      if (pos >= text.size()) break;
      DecodeUtf8(text, &pos);
    }
  } else {
    for (size_t pos = 0; places.size() < limit; pos += from.size()) {
      pos = FindText(text, from, pos);
      if (pos == absl::string_view::npos) break;
      places.push_back(pos);
    }
  }
  if (!in.ChargeString(text.size() + places.size() * to.size())) return {};
  std::string out;
  size_t done = 0;
  for (const size_t place : places) {
    out.append(text, done, place - done);
    out += to;
    done = place + from.size();
  }
  out.append(text, done);
  return MakeStr(std::move(out));
}

std::vector<std::string> SplitLines(absl::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t start = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = pos;
    const uint32_t c = DecodeUtf8(text, &pos);
    const bool breaks = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) ||
                        c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!breaks) continue;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    lines.emplace_back(text.substr(start, (keep_ends ? pos : end) - start));
    start = pos;
  }
  if (start < text.size()) lines.emplace_back(text.substr(start));
  return lines;
}

Value Pad(Services& in, const std::string& text, Int width,
          const std::string& fill, char align) {
  const Int size = static_cast<Int>(CountCharacters(text));
  if (width <= size) return MakeStr(text);
  const Int padding = width - size;
  if (!in.ChargeString(static_cast<uint64_t>(std::min(padding, Int{1} << 40) *
                                             static_cast<Int>(fill.size())))) {
    return {};
  }
  const Int left = align == '<'   ? Int{0}
                   : align == '>' ? padding
                                  : padding / 2 + (padding & width & 1);
  std::string out;
  for (Int i = 0; i < left; ++i) out += fill;
  out += text;
  for (Int i = left; i < padding; ++i) out += fill;
  return MakeStr(std::move(out));
}

namespace {

// Strips white space and removes single underscores between digits. Returns ""
// if there are other underscores.
std::string CleanNumber(absl::string_view text) {
  text = Strip(text, nullptr, true, true);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const auto is_alnum = [&](size_t k) {
      return k < text.size() && absl::ascii_isalnum(text[k]);
    };
    if (i == 0 || !is_alnum(i - 1) || !is_alnum(i + 1)) return "";
  }
  return out;
}

// Whether there are characters of the case and none of the other.
bool IsCased(absl::string_view text, bool (*wanted)(char32_t),
             bool (*other)(char32_t)) {
  bool cased = false;
  for (size_t pos = 0; pos < text.size();) {
    const uint32_t c = DecodeUtf8(text, &pos);
    if (other(c) || IsTitle(c)) return false;
    cased = cased || wanted(c);
  }
  return cased;
}

}  // namespace

std::optional<double> ParseFloat(absl::string_view text) {
  const std::string clean = CleanNumber(text);
  absl::string_view rest = clean;
  if (!rest.empty() && (rest[0] == '+' || rest[0] == '-')) {
    rest.remove_prefix(1);
  }
  const bool special = absl::EqualsIgnoreCase(rest, "inf") ||
                       absl::EqualsIgnoreCase(rest, "infinity") ||
                       absl::EqualsIgnoreCase(rest, "nan");
  if (!special && (rest.empty() || rest.find_first_not_of("0123456789.eE+-") !=
                                       absl::string_view::npos)) {
    return std::nullopt;
  }
  char* end = nullptr;
  const double number = std::strtod(clean.c_str(), &end);
  if (end != clean.c_str() + clean.size()) return std::nullopt;
  return number;
}

std::optional<Int> ParseInt(absl::string_view text, int base) {
  const std::string clean = CleanNumber(text);
  absl::string_view rest = clean;
  bool negative = false;
  if (!rest.empty() && (rest[0] == '+' || rest[0] == '-')) {
    negative = rest[0] == '-';
    rest.remove_prefix(1);
  }
  if (rest.size() > 2 && rest[0] == '0') {
    const char letter = absl::ascii_tolower(rest[1]);
    const int prefix = letter == 'x'   ? 16
                       : letter == 'o' ? 8
                       : letter == 'b' ? 2
                                       : 0;
    if (prefix != 0 && (base == prefix || base == 0)) {
      base = prefix;
      rest.remove_prefix(2);
    }
  }
  if (base == 0) base = 10;
  if (rest.empty()) return std::nullopt;
  Int number = 0;
  for (const char c : rest) {
    const int digit = absl::ascii_isdigit(c) ? c - '0'
                      : absl::ascii_isalpha(c)
                          ? absl::ascii_tolower(c) - 'a' + 10
                          : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(number, Int{base}, &number) ||
        __builtin_add_overflow(number, Int{digit}, &number)) {
      return std::nullopt;
    }
  }
  return negative ? -number : number;
}

bool IsLowerText(absl::string_view text) {
  return IsCased(text, IsLower, IsUpper);
}

bool IsUpperText(absl::string_view text) {
  return IsCased(text, IsUpper, IsLower);
}

double RoundDecimal(double number, int digits) {
  if (!std::isfinite(number) || digits > 320) return number;
  if (digits >= 0) {
    // printf rounds the exact binary value, ties to even, as Python does.
    return std::strtod(absl::StrFormat("%.*f", digits, number).c_str(),
                       nullptr);
  }
  if (digits < -308) return std::copysign(0.0, number);
  const double scale = std::pow(10.0, -digits);
  return std::nearbyint(number / scale) * scale;
}

}  // namespace sluice::jinja
