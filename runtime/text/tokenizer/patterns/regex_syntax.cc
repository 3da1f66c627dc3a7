#include "runtime/text/tokenizer/patterns/regex_syntax.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"
#include "runtime/text/unicode/unicode_additions.h"

namespace sluice {
namespace {

constexpr int kMaxDepth = 200;

// Items of a set, without its brackets. PCRE2's own \s also matches U+180E,
// and its \w leaves out marks and connecting punctuation.
constexpr absl::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr absl::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{d7ff}\x{e000}-\x{10ffff})";
constexpr absl::string_view kHexDigit = "0-9a-fA-F";

// Part of a set: items that fit between brackets, and expressions for one
// character that do not.
struct SetParts {
  std::string items;
  std::vector<std::string> others;

  std::string Expression(bool negated) const {
    if (others.empty()) {
      if (items.empty()) return negated ? "(?s:.)" : "(?!)";
      return absl::StrCat(negated ? "[^" : "[", items, "]");
    }
    std::string any = items.empty() ? "" : absl::StrCat("[", items, "]");
    for (const std::string& other : others) {
      absl::StrAppend(&any, any.empty() ? "" : "|", other);
    }
    if (!negated) return absl::StrCat("(?:", any, ")");
    return absl::StrCat("(?:(?!", any, ")(?s:.))");
  }
};

std::string ItemOf(char32_t c) {
  if (c < 0x80 && absl::ascii_isalnum(static_cast<unsigned char>(c))) {
    return std::string(1, static_cast<char>(c));
  }
  return absl::StrCat("\\x{", absl::Hex(static_cast<uint32_t>(c)), "}");
}

bool Pcre2Knows(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                    pattern.size(), PCRE2_UTF, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

// Characters of a property that PCRE2 does not know yet; with a later PCRE2
// they are redundant.
std::string AddedItems(absl::string_view property) {
  std::string items;
  for (const CharRange& range : AddedCharacters(property)) {
    absl::StrAppend(&items, ItemOf(range.first));
    if (range.last != range.first) {
      absl::StrAppend(&items, "-", ItemOf(range.last));
    }
  }
  return items;
}

// The items of a general category, script or other property of PCRE2.
std::string ItemsOf(absl::string_view property) {
  return absl::StrCat("\\p{", property, "}", AddedItems(property));
}

// The items of \w in a set; elsewhere it has some more of Latin-1's numbers.
std::string WordItems() {
  return absl::StrCat(ItemsOf("Alphabetic"), ItemsOf("M"), ItemsOf("Nd"),
                      "\\p{Pc}");
}
std::string WordItemsOutside() {
  return absl::StrCat(WordItems(), R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})");
}

// Other names of categories and properties; the last six are names for both \p
// and [: :].
constexpr absl::string_view kCategoryNames =
    " letter=L uppercaseletter=Lu lowercaseletter=Ll titlecaseletter=Lt"
    " modifierletter=Lm otherletter=Lo mark=M combiningmark=M nonspacingmark=Mn"
    " spacingmark=Mc enclosingmark=Me number=N decimalnumber=Nd letternumber=Nl"
    " othernumber=No punctuation=P connectorpunctuation=Pc dashpunctuation=Pd"
    " openpunctuation=Ps closepunctuation=Pe initialpunctuation=Pi"
    " finalpunctuation=Pf otherpunctuation=Po symbol=S mathsymbol=Sm"
    " currencysymbol=Sc modifiersymbol=Sk othersymbol=So separator=Z"
    " spaceseparator=Zs lineseparator=Zl paragraphseparator=Zp other=C"
    " control=Cc format=Cf unassigned=Cn privateuse=Co alpha=Alphabetic"
    " lower=Lowercase upper=Uppercase digit=Nd cntrl=Cc punct=P ";

// The items of the class \s, \w, \h or \d of that letter, in a set or outside.
std::optional<std::string> ClassItems(char letter, bool in_set) {
  if (letter == 's') return std::string(kSpace);
  if (letter == 'w') return in_set ? WordItems() : WordItemsOutside();
  if (letter == 'h') return std::string(kHexDigit);
  if (letter == 'd') return ItemsOf("Nd");
  return std::nullopt;
}

// The items of Oniguruma's \p{name} or, with `posix`, [:name:].
std::optional<std::string> PropertyItems(absl::string_view name, bool posix) {
  std::string key;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-') key.push_back(absl::ascii_tolower(c));
  }
  if (key.empty() || key.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyz0123456789") != key.npos) {
    return std::nullopt;
  }
  if (posix && key == "punct") return ItemsOf("P") + ItemsOf("S");
  if (const size_t at = kCategoryNames.find(absl::StrCat(" ", key, "="));
      at != kCategoryNames.npos) {
    const size_t begin = at + key.size() + 2;
    return ItemsOf(
        kCategoryNames.substr(begin, kCategoryNames.find(' ', begin) - begin));
  }
  if (key == "space" || key == "whitespace") return std::string(kSpace);
  if (key == "word") return posix ? WordItems() : WordItemsOutside();
  if (key == "alnum") return ItemsOf("Alphabetic") + ItemsOf("Nd");
  if (key == "blank") return R"(\t\p{Zs})";
  if (key == "xdigit") return std::string(kHexDigit);
  if (key == "ascii") return R"(\x{0}-\x{7f})";
  if (key == "any") return R"(\x{0}-\x{d7ff}\x{e000}-\x{10ffff})";
  // The spelling of PCRE2 and the table of additions: "Lu", "Han".
  key[0] = absl::ascii_toupper(key[0]);
  if (key.size() <= 2 && Pcre2Knows(absl::StrCat("\\p{", key, "}"))) {
    return ItemsOf(key);
  }
  // A bare script name means "script extensions" to PCRE2.
  const std::string script = absl::StrCat("\\p{sc:", key, "}");
  if (Pcre2Knows(script)) return absl::StrCat(script, AddedItems(key));
  if (Pcre2Knows(absl::StrCat("\\p{", key, "}"))) return ItemsOf(key);
  return std::nullopt;
}

class Translator {
 public:
  explicit Translator(absl::string_view in) : in_(in) {}

  absl::StatusOr<std::string> Run() {
    SLUICE_RETURN_IF_ERROR(Alternatives(0));
    if (!AtEnd()) return Invalid("unmatched ')'");
    return std::move(out_);
  }

 private:
  bool AtEnd() const { return pos_ >= in_.size(); }
  char Peek(size_t ahead = 0) const {
    return pos_ + ahead < in_.size() ? in_[pos_ + ahead] : '\0';
  }
  bool Eat(absl::string_view text) {
    if (!absl::StartsWith(in_.substr(pos_), text)) return false;
    pos_ += text.size();
    return true;
  }
  absl::Status Invalid(const auto&... what) const {
    return InvalidArgument("bad regular expression \"", in_, "\": ", what...,
                           " at byte ", pos_);
  }
  absl::Status Unimplemented(const auto&... what) const {
    return sluice::Unimplemented("regular expression \"", in_, "\": ", what...,
                                 " at byte ", pos_);
  }

  // Translates up to ")" (not consumed) or the end.
  absl::Status Alternatives(int depth);
  absl::Status Group(int depth);
  absl::Status Options(int depth);
  absl::Status Escape();
  // Translates a quantifier of the atom that begins at out_[atom].
  void Quantifier(size_t atom);

  absl::StatusOr<std::string> Set(int depth);
  // Translates everything up to "]", "&&" or the end.
  absl::StatusOr<SetParts> SetItems(int depth, bool first);
  absl::Status SetItem(int depth, SetParts* parts);
  // Translates an escape in a set: returns one character, or nullopt for
  // anything else, which is added to `parts`.
  absl::StatusOr<std::optional<char32_t>> SetEscape(SetParts* parts);
  absl::StatusOr<std::optional<char32_t>> SetChar(SetParts* parts);

  // Reads \x, \u or a named control character after "\".
  absl::StatusOr<std::optional<char32_t>> CharEscape();
  std::optional<char32_t> HexDigits(size_t min, size_t max);
  // Translates a property after "\p" or "\P", at "{".
  absl::StatusOr<SetParts> Property(bool negated);

  absl::string_view in_;
  size_t pos_ = 0;
  std::string out_;
};

absl::Status Translator::Alternatives(int depth) {
  if (depth > kMaxDepth) return Invalid("nested too deeply");
  while (!AtEnd() && Peek() != ')') {
    const size_t atom = out_.size();
    switch (Peek()) {
      case '(':
        SLUICE_RETURN_IF_ERROR(Group(depth));
        break;
      case '[': {
        SLUICE_ASSIGN_OR_RETURN(const std::string set, Set(depth));
        out_ += set;
        break;
      }
      case '\\':
        ++pos_;
        SLUICE_RETURN_IF_ERROR(Escape());
        break;
      case '{':  // not a quantifier here
        ++pos_;
        out_ += "\\{";
        break;
      default: {
        const size_t length = Utf8Length(Peek());
        out_.append(in_.data() + pos_, length);
        pos_ += length;
      }
    }
    Quantifier(atom);
  }
  return absl::OkStatus();
}

absl::Status Translator::Group(int depth) {
  if (Eat("(?#")) {
    while (!AtEnd() && Peek() != ')') pos_ += Peek() == '\\' ? 2 : 1;
    if (!Eat(")")) return Invalid("unfinished comment");
    return absl::OkStatus();
  }
  if (Peek(1) == '*') return Unimplemented("\"(*\"");
  bool opened = false;
  for (absl::string_view opening :
       {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
    if (Eat(opening)) {
      absl::StrAppend(&out_, std::string(opening));
      opened = true;
      break;
    }
  }
  if (!opened && (Peek(1) == '?' && (Peek(2) == '<' || Peek(2) == '\''))) {
    const size_t end = in_.find(Peek(2) == '<' ? '>' : '\'', pos_ + 3);
    if (end == in_.npos) return Invalid("unfinished name");
    out_.append(in_.data() + pos_, end + 1 - pos_);
    pos_ = end + 1;
    opened = true;
  }
  if (!opened && Peek(1) == '?') return Options(depth);
  if (!opened) {
    ++pos_;
    out_ += "(";
  }
  SLUICE_RETURN_IF_ERROR(Alternatives(depth + 1));
  if (!Eat(")")) return Invalid("unfinished group");
  out_ += ")";
  return absl::OkStatus();
}

// (?i) holds up to the end of the enclosing group, alternatives included, and
// like a group of its own: a(?i)b|c is a(?i:b|c).
absl::Status Translator::Options(int depth) {
  pos_ += 2;
  out_ += "(?";
  while (Peek() == 'i' || Peek() == 'm' || Peek() == 'x' || Peek() == '-') {
    out_ += Peek() == 'm' ? 's' : Peek();
    ++pos_;
  }
  const bool group = Peek() == ':';
  if (!group && Peek() != ')') return Unimplemented("this kind of group");
  ++pos_;
  out_ += ":";
  SLUICE_RETURN_IF_ERROR(Alternatives(depth + 1));
  if (group && !Eat(")")) return Invalid("unfinished group");
  out_ += ")";
  return absl::OkStatus();
}

void Translator::Quantifier(size_t atom) {
  while (Peek() == '{') {
    size_t end = pos_ + 1;
    bool comma = false;
    size_t digits = 0;
    while (end < in_.size() &&
           (absl::ascii_isdigit(in_[end]) || (in_[end] == ',' && !comma))) {
      in_[end] == ',' ? static_cast<void>(comma = true)
                      : static_cast<void>(++digits);
      ++end;
    }
    if (end >= in_.size() || in_[end] != '}' || digits == 0) return;
    std::string interval(in_.substr(pos_, end + 1 - pos_));
    if (interval[1] == ',') interval.insert(1, "0");
    pos_ = end + 1;
    out_ += interval;
    // A sign behind an interval is a quantifier of its own, except "?" behind
    // one with a comma.
    if (Peek() == '?' && comma) {
      out_ += '?';
      ++pos_;
    } else if (Peek() == '+' || Peek() == '*' || Peek() == '?' ||
               Peek() == '{') {
      out_.insert(atom, "(?:");
      out_ += ")";
    } else {
      return;
    }
    if (Peek() != '{') break;
  }
  if (Peek() == '*' || Peek() == '+' || Peek() == '?') {
    out_ += Peek();
    ++pos_;
    if (Peek() == '?' || Peek() == '+') {
      out_ += Peek();
      ++pos_;
    }
  }
}

absl::Status Translator::Escape() {
  if (AtEnd()) return Invalid("\"\\\" at the end");
  const char c = Peek();
  const auto emit = [&](const auto&... text) {
    ++pos_;
    absl::StrAppend(&out_, text...);
    return absl::OkStatus();
  };
  if (const auto items = ClassItems(absl::ascii_tolower(c), /*in_set=*/false)) {
    return emit(absl::ascii_isupper(c) ? "[^" : "[", *items, "]");
  }
  if (c == 'b' || c == 'B') {
    const std::string word = absl::StrCat("[", WordItemsOutside(), "]");
    const char* behind_word = c == 'b' ? ")(?!" : ")(?=";
    const char* behind_other = c == 'b' ? ")(?=" : ")(?!";
    return emit("(?:(?<=", word, behind_word, word, ")|(?<!", word,
                behind_other, word, "))");
  }
  if (absl::StrContains("AzZGKRX", c)) return emit("\\", in_.substr(pos_, 1));
  if (c == 'k' || c == 'g') {
    const char open = Peek(1);
    if (open != '<' && open != '\'') return emit(in_.substr(pos_, 1));
    const size_t end = in_.find(open == '<' ? '>' : '\'', pos_ + 2);
    if (end == in_.npos) return Invalid("unfinished reference");
    absl::StrAppend(&out_, "\\", in_.substr(pos_, end + 1 - pos_));
    pos_ = end + 1;
    return absl::OkStatus();
  }
  if (c == 'p' || c == 'P') {
    if (Peek(1) != '{') return emit(in_.substr(pos_, 1));
    ++pos_;
    SLUICE_ASSIGN_OR_RETURN(const SetParts parts, Property(c == 'P'));
    out_ += parts.Expression(false);
    return absl::OkStatus();
  }
  if (c >= '1' && c <= '9') {
    out_ += '\\';
    while (absl::ascii_isdigit(Peek())) out_ += in_[pos_++];
    return absl::OkStatus();
  }
  SLUICE_ASSIGN_OR_RETURN(const std::optional<char32_t> character,
                          CharEscape());
  out_ += ItemOf(*character);
  return absl::OkStatus();
}

std::optional<char32_t> Translator::HexDigits(size_t min, size_t max) {
  size_t count = 0;
  char32_t value = 0;
  while (count < max && absl::ascii_isxdigit(Peek(count))) {
    const char c = absl::ascii_tolower(Peek(count));
    value =
        value * 16 + static_cast<char32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    ++count;
  }
  if (count < min) return std::nullopt;
  pos_ += count;
  return value;
}

absl::StatusOr<std::optional<char32_t>> Translator::CharEscape() {
  if (AtEnd()) return Invalid("\"\\\" at the end");
  const auto valid = [](char32_t c) {
    return c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF);
  };
  static constexpr absl::string_view kNamed = "tnrvfae";
  static constexpr absl::string_view kControls = "\t\n\r\v\f\a\x1B";
  if (const size_t i = kNamed.find(Peek()); i != kNamed.npos) {
    ++pos_;
    return static_cast<char32_t>(kControls[i]);
  }
  if (absl::StrContains("cCMNOyY", Peek())) {
    return Unimplemented("\"\\", in_.substr(pos_, 1), "\"");
  }
  switch (Peek()) {
    case 'x': {
      ++pos_;
      if (Eat("{")) {
        const std::optional<char32_t> value = HexDigits(1, 8);
        if (!value || !valid(*value) || !Eat("}")) {
          return Invalid("bad character number");
        }
        return value;
      }
      const std::optional<char32_t> value = HexDigits(0, 2);
      if (*value >= 0x80) return Unimplemented("raw bytes");
      return value;
    }
    case 'u': {
      ++pos_;
      const std::optional<char32_t> value = HexDigits(4, 4);
      if (!value || !valid(*value)) return Invalid("bad character number");
      return value;
    }
    case '0': {
      char32_t value = 0;
      for (int i = 0; i < 3 && Peek() >= '0' && Peek() <= '7'; ++i, ++pos_) {
        value = value * 8 + static_cast<char32_t>(Peek() - '0');
      }
      if (value >= 0x80) return Unimplemented("raw bytes");
      return value;
    }
    default:
      return DecodeUtf8(in_, &pos_);
  }
}

absl::StatusOr<SetParts> Translator::Property(bool negated) {
  const size_t end = in_.find('}', pos_);
  if (end == in_.npos) return Invalid("unfinished property");
  absl::string_view name = in_.substr(pos_ + 1, end - pos_ - 1);
  if (!name.empty() && name[0] == '^') {
    negated = !negated;
    name.remove_prefix(1);
  }
  const std::optional<std::string> items = PropertyItems(name, /*posix=*/false);
  if (!items) {
    return Unimplemented("property \"", name, "\"");
  }
  pos_ = end + 1;
  SetParts parts;
  if (!negated) {
    parts.items = *items;
  } else {
    parts.others.push_back(absl::StrCat("[^", *items, "]"));
  }
  return parts;
}

absl::StatusOr<std::string> Translator::Set(int depth) {
  if (depth > kMaxDepth) return Invalid("nested too deeply");
  ++pos_;  // "["
  const bool negated = Eat("^");
  std::vector<SetParts> operands;
  do {
    SLUICE_ASSIGN_OR_RETURN(SetParts parts, SetItems(depth, operands.empty()));
    operands.push_back(std::move(parts));
  } while (Eat("&&"));
  if (!Eat("]")) return Invalid("unfinished set");
  if (operands.size() == 1) return operands[0].Expression(negated);
  std::string all = "(?:";
  for (size_t i = 0; i + 1 < operands.size(); ++i) {
    absl::StrAppend(&all, "(?=", operands[i].Expression(false), ")");
  }
  absl::StrAppend(&all, operands.back().Expression(false), ")");
  return negated ? absl::StrCat("(?:(?!", all, ")(?s:.))") : all;
}

absl::StatusOr<SetParts> Translator::SetItems(int depth, bool first) {
  SetParts parts;
  if (first && Eat("]")) parts.items += "\\]";
  while (!AtEnd() && Peek() != ']' && !(Peek() == '&' && Peek(1) == '&')) {
    SLUICE_RETURN_IF_ERROR(SetItem(depth, &parts));
  }
  return parts;
}

absl::Status Translator::SetItem(int depth, SetParts* parts) {
  if (Peek() == '[' && Peek(1) == ':') {
    const size_t end = in_.find(":]", pos_ + 2);
    if (end != in_.npos) {
      absl::string_view name = in_.substr(pos_ + 2, end - pos_ - 2);
      const bool negated = !name.empty() && name[0] == '^';
      if (negated) name.remove_prefix(1);
      const std::optional<std::string> items =
          PropertyItems(name, /*posix=*/true);
      if (items) {
        pos_ = end + 2;
        if (negated) {
          parts->others.push_back(absl::StrCat("[^", *items, "]"));
        } else {
          parts->items += *items;
        }
        return absl::OkStatus();
      }
    }
  }
  if (Peek() == '[') {
    SLUICE_ASSIGN_OR_RETURN(std::string inner, Set(depth + 1));
    if (inner[0] == '[' && inner[1] != '^') {
      parts->items.append(inner, 1, inner.size() - 2);
    } else {
      parts->others.push_back(std::move(inner));
    }
    return absl::OkStatus();
  }
  SLUICE_ASSIGN_OR_RETURN(const std::optional<char32_t> low, SetChar(parts));
  if (!low) return absl::OkStatus();
  parts->items += ItemOf(*low);
  const bool range =
      Peek() == '-' && Peek(1) != ']' && Peek(1) != '\0' && Peek(1) != '[';
  if (!range) return absl::OkStatus();
  ++pos_;
  SetParts end_parts;
  SLUICE_ASSIGN_OR_RETURN(const std::optional<char32_t> high,
                          SetChar(&end_parts));
  if (high) {
    absl::StrAppend(&parts->items, "-", ItemOf(*high));
  } else {  // [a-\d]: the hyphen stands for itself
    absl::StrAppend(&parts->items, "\\-", end_parts.items);
    for (std::string& other : end_parts.others) {
      parts->others.push_back(std::move(other));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<char32_t>> Translator::SetChar(SetParts* parts) {
  if (Peek() == '\\') {
    ++pos_;
    return SetEscape(parts);
  }
  return DecodeUtf8(in_, &pos_);
}

absl::StatusOr<std::optional<char32_t>> Translator::SetEscape(SetParts* parts) {
  if (AtEnd()) return Invalid("\"\\\" at the end");
  const char c = Peek();
  const auto item = [&](absl::string_view items) {
    ++pos_;
    parts->items.append(items.data(), items.size());
    return std::optional<char32_t>();
  };
  const auto other = [&](absl::string_view items) {
    ++pos_;
    parts->others.push_back(absl::StrCat("[^", items, "]"));
    return std::optional<char32_t>();
  };
  if (c == 'S') return item(kNotSpace);
  if (const auto items = ClassItems(absl::ascii_tolower(c), /*in_set=*/true)) {
    return absl::ascii_isupper(c) ? other(*items) : item(*items);
  }
  if (c == 'b') {
    ++pos_;
    return U'\b';
  }
  if (c == 'R' || c == 'X') {
    return Unimplemented("\"\\", in_.substr(pos_, 1), "\"");
  }
  if ((c == 'p' || c == 'P') && Peek(1) == '{') {
    ++pos_;
    SLUICE_ASSIGN_OR_RETURN(const SetParts property, Property(c == 'P'));
    parts->items += property.items;
    parts->others.insert(parts->others.end(), property.others.begin(),
                         property.others.end());
    return std::optional<char32_t>();
  }
  return CharEscape();
}

}  // namespace

absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern) {
  if (FindInvalidUtf8(pattern)) {
    return absl::InvalidArgumentError("regular expression is not UTF-8");
  }
  return Translator(pattern).Run();
}

}  // namespace sluice
