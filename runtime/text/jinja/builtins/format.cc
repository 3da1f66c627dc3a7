#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "common/text/utf8.h"
#include "runtime/text/jinja/builtins/builtins.h"
#include "runtime/text/jinja/services.h"
#include "runtime/text/jinja/text_ops.h"
#include "runtime/text/unicode/python_text.h"

// Python's two ways to format: "%5.2f" % x and "{:>5}".format(x).

namespace sluice::jinja {
namespace {

// Larger widths and precisions are refused, as they only cost memory.
constexpr int kMaxWidth = 100000;

// One conversion, however it was written.
struct Spec {
  std::string fill = " ";
  char align = '\0';  // '<', '>', '^', '=' (after the sign)
  char sign = '-';    // '-', '+', ' '
  bool alternate = false;
  char grouping = '\0';  // ',' or '_'
  int width = 0;
  int precision = -1;
  char type = '\0';
};

std::string Digits(Int value, int base) {
  if (base == 10) return IntToString(value);
  std::string out;
  do {
    out.insert(out.begin(), "0123456789abcdef"[static_cast<int>(value % base)]);
    value /= base;
  } while (value != 0);
  return out;
}

std::string Grouped(const std::string& digits, char separator, size_t every) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) out += separator;
    out += digits[i];
  }
  return out;
}

// Pads `body`, behind `sign` (or a prefix like "0x").
Value Padded(Services& in, const Spec& spec, const std::string& sign,
             const std::string& body, char default_align) {
  const char align = spec.align == '\0' ? default_align : spec.align;
  if (align == '=') {
    const Int width = Int{spec.width} - static_cast<Int>(CountCharacters(sign));
    const Value padded = Pad(in, body, width, spec.fill, '>');
    return in.failed() ? Value() : MakeStr(sign + padded.AsStr()->text);
  }
  const std::string whole = sign + body;
  if (align != '^') return Pad(in, whole, spec.width, spec.fill, align);
  // Format strings centre with the odd character on the right.
  const Int padding = std::max(
      Int{spec.width} - static_cast<Int>(CountCharacters(whole)), Int{0});
  const Int size = static_cast<Int>(CountCharacters(whole));
  const Value left = Pad(in, whole, size + padding / 2, spec.fill, '>');
  return in.failed() ? Value()
                     : Pad(in, left.AsStr()->text, spec.width, spec.fill, '<');
}

std::string SignText(const Spec& spec, bool negative) {
  if (negative) return "-";
  return spec.sign == '-' ? "" : std::string(1, spec.sign);
}

Value FormatInt(Services& in, const Spec& spec, Int value) {
  const bool negative = value < 0;
  const Int magnitude = negative ? -value : value;
  const int base = spec.type == 'x' || spec.type == 'X' ? 16
                   : spec.type == 'o'                   ? 8
                   : spec.type == 'b'                   ? 2
                                                        : 10;
  std::string digits = Digits(magnitude, base);
  if (spec.type == 'X') digits = absl::AsciiStrToUpper(digits);
  if (spec.precision > static_cast<int>(digits.size())) {
    digits.insert(0, spec.precision - digits.size(), '0');
  }
  if (spec.grouping != '\0') {
    digits = Grouped(digits, spec.grouping, base == 10 ? 3 : 4);
  }
  std::string sign = SignText(spec, negative);
  if (spec.alternate && base != 10) sign += {'0', spec.type};
  return Padded(in, spec, sign, digits, '>');
}

Value FormatFloat(Services& in, const Spec& spec, double value) {
  const bool negative = std::signbit(value) && !std::isnan(value);
  double magnitude = std::fabs(value);
  const bool upper = absl::ascii_isupper(spec.type);
  char type = absl::ascii_tolower(spec.type);
  std::string suffix;
  if (type == '%') {
    magnitude *= 100;
    type = 'f';
    suffix = "%";
  }
  std::string body;
  if (!std::isfinite(magnitude)) {
    body = std::isnan(magnitude) ? "nan" : "inf";
  } else if (type == '\0' && spec.precision < 0) {
    body = FloatRepr(magnitude);
  } else {
    const int precision = spec.precision < 0 ? 6 : spec.precision;
    if (!in.ChargeString(static_cast<uint64_t>(precision) + 400)) return {};
    body = type == 'e'   ? absl::StrFormat("%.*e", precision, magnitude)
           : type == 'f' ? absl::StrFormat("%.*f", precision, magnitude)
                         : absl::StrFormat("%.*g", precision, magnitude);
    // Without a type, at least one digit follows the point.
    if (type == '\0' && body.find_first_of(".en") == std::string::npos) {
      body += ".0";
    }
  }
  if (upper) body = absl::AsciiStrToUpper(body);
  if (spec.grouping != '\0') {
    const size_t whole =
        std::min(body.find_first_not_of("0123456789"), body.size());
    body =
        Grouped(body.substr(0, whole), spec.grouping, 3) + body.substr(whole);
  }
  return Padded(in, spec, SignText(spec, negative), body + suffix, '>');
}

Value FormatText(Services& in, const Spec& spec, const std::string& text) {
  if (spec.precision < 0) return Padded(in, spec, "", text, '<');
  std::u32string c = ToUtf32(text);
  if (c.size() > static_cast<size_t>(spec.precision)) c.resize(spec.precision);
  return Padded(in, spec, "", FromUtf32(c), '<');
}

// Reads digits. Returns false if the number is too large.
bool ReadNumber(const std::string& text, size_t& pos, int& number) {
  number = 0;
  while (pos < text.size() && absl::ascii_isdigit(text[pos])) {
    number = number * 10 + (text[pos++] - '0');
    if (number > kMaxWidth) return false;
  }
  return true;
}

std::string Repr(Services& in, const Value& value) {
  std::string text;
  if (in.ChargeBytes(ExtentOf(value).size)) AppendRepr(value, text);
  return text;
}

std::string EscapeNonAscii(const std::string& text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const uint32_t c = DecodeUtf8(text, &pos);
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else {
      AppendPythonEscape(c, &out);
    }
  }
  return out;
}

// The conversion of "%": a type letter decides what the value must be.
Value ConvertPercent(Services& in, Spec spec, bool zero, bool left,
                     const Value& value) {
  if (left) {
    spec.align = '<';
  } else if (zero) {
    spec.fill = "0";
    spec.align = '=';
  } else {
    spec.align = '>';
  }
  const auto not_number = [&](const char* what) {
    return in.Fail("%", std::string(1, spec.type), " format: ", what,
                   " is required, not ", TypeName(value));
  };
  switch (spec.type) {
    case 's':
    case 'r':
    case 'a': {
      if (spec.align == '=') spec.align = '>';
      spec.fill = " ";
      std::string text = spec.type == 's' ? in.Str(value) : Repr(in, value);
      if (spec.type == 'a') text = EscapeNonAscii(text);
      return FormatText(in, spec, text);
    }
    case 'd':
    case 'i':
    case 'u':
      if (!value.IsNumber()) return not_number("a real number");
      if (value.IsFloat()) {
        if (!(std::fabs(value.float_value()) < 1e37)) {
          return in.Fail("a number is too large for an integer");
        }
        return FormatInt(in, spec, static_cast<Int>(value.float_value()));
      }
      return FormatInt(in, spec, value.int_value());
    case 'x':
    case 'X':
    case 'o':
      if (!value.IsInt() && !value.IsBool()) return not_number("an integer");
      return FormatInt(in, spec, value.int_value());
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (!value.IsNumber()) return not_number("a real number");
      return FormatFloat(in, spec, value.float_value());
    case 'c': {
      spec.fill = " ";
      if (spec.align == '=') spec.align = '>';
      if (const auto* str = value.AsStr()) {
        if (CountCharacters(str->text) == 1) {
          return Padded(in, spec, "", str->text, '>');
        }
      } else if (value.IsInt() && value.int_value() >= 0 &&
                 value.int_value() < 0x110000) {
        std::string text;
        AppendUtf8(static_cast<uint32_t>(value.int_value()), &text);
        if (!FindInvalidUtf8(text)) return Padded(in, spec, "", text, '>');
      }
      return in.Fail("%c requires int or char");
    }
    default:
      return in.Fail("unsupported format character '",
                     std::string(1, spec.type), "'");
  }
}

// One format string and its arguments.
class PercentFormatter {
 public:
  PercentFormatter(Services& in, const std::string& format, const Value& value)
      : in_(in), format_(format), value_(value), args_{value} {
    if (value.IsTuple()) args_ = value.AsSeq()->items;
  }

  Value Run() {
    std::string out;
    while (pos_ < format_.size() && !in_.failed()) {
      const size_t percent = std::min(format_.find('%', pos_), format_.size());
      out.append(format_, pos_, percent - pos_);
      if (percent == format_.size()) break;
      pos_ = percent + 1;
      const std::string piece = Conversion();
      if (in_.failed()) return {};
      out += piece;
    }
    // A value with items that is no tuple may be left unused.
    const bool may_be_left =
        value_.AsDict() != nullptr || value_.IsUndefined() ||
        value_.IsKind(SeqKind::kList) || value_.IsKind(SeqKind::kRange);
    if (used_ < args_.size() && !may_be_left) {
      return in_.Fail("not all arguments converted during string formatting");
    }
    return MakeStr(std::move(out));
  }

 private:
  char Peek() const { return pos_ < format_.size() ? format_[pos_] : '\0'; }
  Value Next() {
    if (used_ < args_.size()) return args_[used_++];
    return in_.Fail("not enough arguments for format string");
  }

  // Reads "(key)" and returns the value of that name; null if there is no key.
  const Value* Keyed() {
    if (Peek() != '(') return nullptr;
    const size_t close = format_.find(')', pos_);
    const Dict* mapping = value_.AsDict();
    if (close == std::string::npos || mapping == nullptr) {
      in_.Fail(mapping == nullptr && close != std::string::npos
                   ? "format requires a mapping"
                   : "incomplete format key");
      return nullptr;
    }
    const std::string key = format_.substr(pos_ + 1, close - pos_ - 1);
    const Value* keyed = DictGet(*mapping, key);
    if (keyed == nullptr) in_.Fail("no key '", key, "'");
    pos_ = close + 1;
    return keyed;
  }

  // Reads a width or precision: digits, or "*" for the next argument.
  int Number() {
    int number = 0;
    if (Peek() != '*') {
      if (!ReadNumber(format_, pos_, number)) {
        in_.Fail("width or precision is too large");
      }
      return number;
    }
    ++pos_;
    const Value star = Next();
    if (in_.failed()) return 0;
    if (!star.IsInt() || star.int_value() > kMaxWidth ||
        star.int_value() < -kMaxWidth) {
      in_.Fail("* wants an integer of reasonable size");
      return 0;
    }
    return static_cast<int>(star.int_value());
  }

  // Formats one "%...", which begins behind the "%".
  std::string Conversion() {
    const Value* keyed = Keyed();
    const size_t begin = pos_;
    while (Peek() != '\0' && absl::StrContains("-0+ #", Peek())) ++pos_;
    const absl::string_view flags(format_.data() + begin, pos_ - begin);
    Spec spec;
    bool left = absl::StrContains(flags, '-');
    spec.sign = absl::StrContains(flags, '+')   ? '+'
                : absl::StrContains(flags, ' ') ? ' '
                                                : '-';
    spec.alternate = absl::StrContains(flags, '#');
    spec.width = Number();
    if (spec.width < 0) {
      left = true;
      spec.width = -spec.width;
    }
    if (!in_.failed() && Peek() == '.') {
      ++pos_;
      spec.precision = std::max(Number(), 0);
    }
    if (in_.failed()) return "";
    while (Peek() != '\0' && absl::StrContains("hlL", Peek())) ++pos_;
    if (pos_ >= format_.size()) {
      in_.Fail("incomplete format");
      return "";
    }
    spec.type = format_[pos_++];
    if (spec.type == '%') return "%";
    const Value argument = keyed != nullptr ? *keyed : Next();
    if (in_.failed()) return "";
    const Value piece = ConvertPercent(in_, spec, absl::StrContains(flags, '0'),
                                       left, argument);
    if (in_.failed() || !in_.ChargeString(piece.AsStr()->text.size()) ||
        !in_.CheckExtent(piece)) {
      return "";
    }
    return piece.AsStr()->text;
  }

  Services& in_;
  const std::string& format_;
  const Value& value_;
  std::vector<Value> args_;
  size_t used_ = 0;
  size_t pos_ = 0;
};

}  // namespace

Value FormatPercent(Services& in, const std::string& format,
                    const Value& value) {
  return PercentFormatter(in, format, value).Run();
}

namespace {

bool IsAlign(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

// Parses [[fill]align][sign][#][0][width][grouping][.precision][type].
bool ParseSpec(Services& in, const std::string& text, Spec& spec) {
  size_t pos = 0;
  if (!text.empty()) {
    size_t after_fill = 0;
    DecodeUtf8(text, &after_fill);
    if (after_fill < text.size() && IsAlign(text[after_fill])) {
      spec.fill = text.substr(0, after_fill);
      spec.align = text[after_fill];
      pos = after_fill + 1;
    } else if (IsAlign(text[0])) {
      spec.align = text[0];
      pos = 1;
    }
  }
  const auto take = [&](char c) {
    if (pos >= text.size() || text[pos] != c) return false;
    ++pos;
    return true;
  };
  for (const char sign : {'+', '-', ' '}) {
    if (take(sign)) {
      spec.sign = sign;
      break;
    }
  }
  spec.alternate = take('#');
  if (take('0') && spec.align == '\0') {
    spec.fill = "0";
    spec.align = '=';
  }
  bool ok = ReadNumber(text, pos, spec.width);
  if (take(',')) spec.grouping = ',';
  if (take('_')) spec.grouping = '_';
  if (take('.')) ok = ok && ReadNumber(text, pos, spec.precision);
  if (pos < text.size()) spec.type = text[pos++];
  if (ok && pos == text.size()) return true;
  in.Fail("invalid format specifier");
  return false;
}

Value FormatWithSpec(Services& in, const Value& value,
                     const std::string& text) {
  if (text.empty()) return MakeStr(in.Str(value));
  Spec spec;
  if (!ParseSpec(in, text, spec)) return {};
  const auto bad_type = [&] {
    return in.Fail("unknown format code '", std::string(1, spec.type),
                   "' for object of type '", TypeName(value), "'");
  };
  if (const auto* str = value.AsStr()) {
    if (spec.type != '\0' && spec.type != 's') return bad_type();
    if (spec.grouping != '\0') return in.Fail("cannot group a string");
    if (spec.align == '=' && spec.fill == "0") spec.align = '<';
    return FormatText(in, spec, str->text);
  }
  if (!value.IsNumber()) {
    return in.Fail("unsupported format string passed to ", TypeName(value),
                   ".__format__");
  }
  if (spec.type == 'n') spec.type = value.IsFloat() ? 'g' : 'd';
  if (value.IsFloat() || absl::StrContains("eEfFgG%", spec.type)) {
    if (spec.type != '\0' && !absl::StrContains("eEfFgG%", spec.type)) {
      return bad_type();
    }
    return FormatFloat(in, spec, value.float_value());
  }
  if (spec.type != '\0' && !absl::StrContains("dxXob", spec.type)) {
    return bad_type();
  }
  if (spec.precision >= 0) {
    return in.Fail("precision not allowed in integer format specifier");
  }
  return FormatInt(in, spec, value.int_value());
}

// Looks up the value of a replacement field: "0", "name", "0.attr[key]".
Value LookUpField(Services& in, const std::string& field, const CallArgs& args,
                  size_t& next) {
  const size_t end = std::min(field.find_first_of(".["), field.size());
  const std::string first = field.substr(0, end);
  Value value;
  const bool digits =
      first.find_first_not_of("0123456789") == std::string::npos;
  if (digits) {
    size_t index = next;
    if (first.empty()) {
      ++next;
    } else if (!absl::SimpleAtoi(first, &index)) {
      index = SIZE_MAX;
    }
    if (index >= args.positional.size()) {
      return in.Fail("replacement index out of range for positional args");
    }
    value = args.positional[index];
  } else {
    bool found = false;
    for (const auto& [name, given] : args.keywords) {
      if (name != first) continue;
      value = given;
      found = true;
    }
    if (!found) return in.Fail("no argument '", first, "'");
  }
  for (size_t pos = end; pos < field.size() && !in.failed();) {
    if (field[pos] == '.') {
      const size_t stop =
          std::min(field.find_first_of(".[", pos + 1), field.size());
      value = GetAttr(in, value, field.substr(pos + 1, stop - pos - 1));
      pos = stop;
    } else {
      const size_t close = field.find(']', pos);
      if (field[pos] != '[' || close == std::string::npos) {
        return in.Fail("malformed replacement field");
      }
      const std::string key = field.substr(pos + 1, close - pos - 1);
      const std::optional<Int> index =
          key.find_first_not_of("0123456789") == std::string::npos
              ? ParseInt(key, 10)
              : std::nullopt;
      value = GetItem(in, value, index ? Value(*index) : MakeStr(key));
      pos = close + 1;
    }
  }
  return value;
}

}  // namespace

Value FormatBraces(Services& in, const std::string& format,
                   const CallArgs& args) {
  std::string out;
  size_t next = 0;
  for (size_t pos = 0; pos < format.size() && !in.failed();) {
    const char c = format[pos];
    if (c != '{' && c != '}') {
      out += c;
      ++pos;
      continue;
    }
    if (pos + 1 < format.size() && format[pos + 1] == c) {
      out += c;
      pos += 2;
      continue;
    }
    if (c == '}') return in.Fail("single '}' encountered in format string");
    const size_t close = format.find('}', pos);
    if (close == std::string::npos) {
      return in.Fail("single '{' encountered in format string");
    }
    std::string field = format.substr(pos + 1, close - pos - 1);
    pos = close + 1;
    if (field.find('{') != std::string::npos) {
      return in.Unsupported("a nested replacement field");
    }
    std::string spec;
    if (const size_t colon = field.find(':'); colon != std::string::npos) {
      spec = field.substr(colon + 1);
      field.resize(colon);
    }
    char conversion = '\0';
    if (const size_t mark = field.find('!'); mark != std::string::npos) {
      if (mark + 2 != field.size()) return in.Fail("malformed conversion");
      conversion = field.back();
      field.resize(mark);
    }
    Value value = LookUpField(in, field, args, next);
    if (in.failed()) return {};
    if (conversion == 'r' || conversion == 'a') {
      const std::string text = Repr(in, value);
      value = MakeStr(conversion == 'a' ? EscapeNonAscii(text) : text);
    } else if (conversion == 's') {
      value = MakeStr(in.Str(value));
    } else if (conversion != '\0') {
      return in.Fail("unknown conversion");
    }
    const Value piece = FormatWithSpec(in, value, spec);
    if (in.failed() || !in.ChargeString(piece.AsStr()->text.size())) return {};
    out += piece.AsStr()->text;
  }
  return MakeStr(std::move(out));
}

}  // namespace sluice::jinja
