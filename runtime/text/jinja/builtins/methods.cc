#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/text/utf8.h"
#include "runtime/text/jinja/builtins/builtins.h"
#include "runtime/text/jinja/interpreter.h"
#include "runtime/text/jinja/text_ops.h"
#include "runtime/text/unicode/python_text.h"

// Attributes and methods that Python's types have and the sandbox lets through.

namespace sluice::jinja {
namespace {

using In = Interpreter;
using Method = Value (*)(In&, const Value&, const CallArgs&);

const std::string& TextOf(const Value& self) { return self.AsStr()->text; }

// --- str

Value StripMethod(In& in, const Value& self, const CallArgs& args, bool left,
                  bool right) {
  Bound bound(in, "strip", args, {"chars"});
  const std::string* chars = bound.StrOrNull(0);
  if (!bound.ok() || (chars != nullptr &&
                      !in.Charge(TextOf(self).size() * chars->size() / 16))) {
    return {};
  }
  return MakeStr(std::string(Strip(TextOf(self), chars, left, right)));
}

Value MakeStrings(std::vector<std::string> texts) {
  std::vector<Value> items;
  items.reserve(texts.size());
  for (std::string& text : texts) items.push_back(MakeStr(std::move(text)));
  return MakeList(std::move(items));
}

// split and rsplit. `limit` < 0: no limit.
std::vector<std::string> SplitBySpace(absl::string_view text, Int limit,
                                      bool from_right) {
  std::vector<std::string> parts;
  if (!from_right) {
    text = Strip(text, nullptr, true, false);
    while (!text.empty()) {
      if (limit >= 0 && static_cast<Int>(parts.size()) == limit) {
        parts.emplace_back(Strip(text, nullptr, false, true));
        break;
      }
      size_t end = 0;
      while (end < text.size()) {
        size_t next = end;
        if (IsSpace(DecodeUtf8(text, &next))) break;
        end = next;
      }
      parts.emplace_back(text.substr(0, end));
      text = Strip(text.substr(end), nullptr, true, false);
    }
    return parts;
  }
  text = Strip(text, nullptr, false, true);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<Int>(parts.size()) == limit) {
      parts.emplace_back(Strip(text, nullptr, true, false));
      break;
    }
    size_t begin = 0;
    for (size_t pos = 0; pos < text.size();) {
      if (IsSpace(DecodeUtf8(text, &pos))) begin = pos;
    }
    parts.emplace_back(text.substr(begin));
    text = Strip(text.substr(0, begin), nullptr, false, true);
    // Only the last limit parts are looked for, so that this stays linear.
    if (limit < 0) {
      for (std::string& part : SplitBySpace(text, -1, false)) {
        parts.insert(parts.begin() + 0, std::move(part));
      }
      break;
    }
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value SplitMethod(In& in, const Value& self, const CallArgs& args,
                  bool from_right) {
  Bound bound(in, from_right ? "rsplit" : "split", args, {"sep", "maxsplit"});
  const std::string* separator = bound.StrOrNull(0);
  Int limit = bound.IntOr(1, -1);
  const std::string& text = TextOf(self);
  if (!bound.ok() || !in.Charge(text.size())) return {};
  if (separator == nullptr) {
    if (from_right && limit < 0) from_right = false;  // the same parts
    if (from_right) {
      // Each part is found by a walk over what is left of it.
      const Int walks = std::min(limit, static_cast<Int>(text.size()));
      if (!in.Charge(static_cast<uint64_t>(walks) * text.size() / 8)) return {};
    }
    return MakeStrings(SplitBySpace(text, limit, from_right));
  }
  if (separator->empty()) return in.Fail("empty separator");
  std::vector<size_t> places;
  for (size_t pos = 0;
       (pos = FindText(text, *separator, pos)) != absl::string_view::npos;
       pos += separator->size()) {
    places.push_back(pos);
  }
  if (from_right && limit >= 0) {
    // Occurrences are counted from the right, where they may fall differently.
    places.clear();
    size_t end = text.size();
    while (static_cast<Int>(places.size()) < limit &&
           end >= separator->size()) {
      const size_t place =
          absl::string_view(text).substr(0, end).rfind(*separator);
      if (place == absl::string_view::npos) break;
      if (!in.ChargeBytes((end - place) * separator->size())) return {};
      places.push_back(place);
      end = place;
    }
    std::reverse(places.begin(), places.end());
  } else if (limit >= 0 && static_cast<Int>(places.size()) > limit) {
    places.resize(static_cast<size_t>(limit));
  }
  if (!in.Charge(4 * places.size())) return {};
  std::vector<std::string> parts;
  size_t done = 0;
  for (const size_t place : places) {
    parts.push_back(text.substr(done, place - done));
    done = place + separator->size();
  }
  parts.push_back(text.substr(done));
  return MakeStrings(std::move(parts));
}

Value PartitionMethod(In& in, const Value& self, const CallArgs& args,
                      bool from_right) {
  Bound bound(in, "partition", args, {"sep"}, 1);
  const std::string* separator = bound.StrOrNull(0);
  if (!bound.ok()) return {};
  if (separator == nullptr || separator->empty()) {
    return in.Fail("empty separator");
  }
  const std::string& text = TextOf(self);
  if (from_right && !in.ChargeBytes(text.size() * separator->size())) return {};
  const size_t place =
      from_right ? text.rfind(*separator) : FindText(text, *separator);
  if (place == std::string::npos) {
    const Value none = MakeStr("");
    return from_right ? MakeTuple({none, none, self})
                      : MakeTuple({self, none, none});
  }
  return MakeTuple({MakeStr(text.substr(0, place)), MakeStr(*separator),
                    MakeStr(text.substr(place + separator->size()))});
}

// The part of a string that optional start and end arguments (code points)
// select, and where it begins, in code points. False if it is out of reach.
bool Window(Bound& bound, const std::string& text, absl::string_view& window,
            Int& first) {
  first = 0;
  window = text;
  const bool has_start = bound[1] != nullptr && !bound[1]->IsNone();
  const bool has_end = bound[2] != nullptr && !bound[2]->IsNone();
  if (!has_start && !has_end) return true;
  const Int size = static_cast<Int>(CountCharacters(text));
  const auto place = [&](Int index) {
    return index < 0 ? std::max(index + size, Int{0}) : index;
  };
  const Int start = has_start ? place(bound.IntOr(1, 0)) : Int{0};
  const Int end = has_end ? std::min(place(bound.IntOr(2, 0)), size) : size;
  if (!bound.ok() || start > size || end < start) return false;
  size_t begin_byte = 0, end_byte = 0;
  for (Int i = 0; i < start; ++i) DecodeUtf8(text, &begin_byte);
  end_byte = begin_byte;
  for (Int i = start; i < end; ++i) DecodeUtf8(text, &end_byte);
  window = absl::string_view(text).substr(begin_byte, end_byte - begin_byte);
  first = start;
  return true;
}

Value FindMethod(In& in, const Value& self, const CallArgs& args,
                 bool from_right, bool must_find) {
  Bound bound(in, "find", args, {"sub", "start", "end"}, 1);
  const std::string* what = bound.StrOrNull(0);
  if (!bound.ok()) return {};
  if (what == nullptr) return in.Fail("find() needs a string");
  absl::string_view window;
  Int first = 0;
  size_t place = absl::string_view::npos;
  if (Window(bound, TextOf(self), window, first)) {
    if (from_right && !in.ChargeBytes(window.size() * what->size())) return {};
    place = from_right ? window.rfind(*what) : FindText(window, *what);
  }
  if (!bound.ok()) return {};
  if (place == absl::string_view::npos) {
    return must_find ? in.Fail("substring not found") : Value(-1);
  }
  return first + static_cast<Int>(CountCharacters(window.substr(0, place)));
}

Value CountMethod(In& in, const Value& self, const CallArgs& args) {
  Bound bound(in, "count", args, {"sub", "start", "end"}, 1);
  const std::string* what = bound.StrOrNull(0);
  if (!bound.ok()) return {};
  if (what == nullptr) return in.Fail("count() needs a string");
  absl::string_view window;
  Int first = 0;
  if (!Window(bound, TextOf(self), window, first)) return 0;
  if (what->empty()) return CountCharacters(window) + 1;
  size_t count = 0;
  for (size_t pos = 0;
       (pos = FindText(window, *what, pos)) != absl::string_view::npos;
       pos += what->size()) {
    ++count;
  }
  return count;
}

Value AffixMethod(In& in, const Value& self, const CallArgs& args,
                  bool at_end) {
  Bound bound(in, at_end ? "endswith" : "startswith", args,
              {"affix", "start", "end"}, 1);
  if (!bound.ok()) return {};
  std::vector<Value> affixes = {*bound[0]};
  if (bound[0]->IsKind(SeqKind::kTuple)) affixes = in.Items(*bound[0]);
  absl::string_view window;
  Int first = 0;
  const bool in_reach = Window(bound, TextOf(self), window, first);
  for (const Value& affix : affixes) {
    const auto* str = affix.AsStr();
    if (str == nullptr) {
      return in.Fail(absl::StrCat(at_end ? "endswith" : "startswith",
                                  " first arg must be str or a tuple of str, "
                                  "not ",
                                  TypeName(affix)));
    }
    if (in_reach && (at_end ? absl::EndsWith(window, str->text)
                            : absl::StartsWith(window, str->text))) {
      return true;
    }
  }
  return false;
}

Value RemoveAffix(In& in, const Value& self, const CallArgs& args,
                  bool at_end) {
  Bound bound(in, "removeprefix", args, {"affix"}, 1);
  const std::string* affix = bound.StrOrNull(0);
  if (!bound.ok()) return {};
  if (affix == nullptr) return in.Fail("removeprefix() needs a string");
  const std::string& text = TextOf(self);
  if (at_end && absl::EndsWith(text, *affix)) {
    return MakeStr(text.substr(0, text.size() - affix->size()));
  }
  if (!at_end && absl::StartsWith(text, *affix)) {
    return MakeStr(text.substr(affix->size()));
  }
  return self;
}

Value JoinMethod(In& in, const Value& self, const CallArgs& args) {
  Bound bound(in, "join", args, {"iterable"}, 1);
  if (!bound.ok()) return {};
  const std::vector<Value> items = in.Items(*bound[0]);
  uint64_t bytes = 0;
  for (const Value& item : items) {
    if (item.AsStr() == nullptr) {
      return in.Fail(absl::StrCat("sequence item: expected str instance, ",
                                  TypeName(item), " found"));
    }
    bytes += item.AsStr()->text.size() + TextOf(self).size();
  }
  if (!in.ChargeString(bytes)) return {};
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += TextOf(self);
    out += items[i].AsStr()->text;
  }
  return MakeStr(std::move(out));
}

Value ReplaceMethod(In& in, const Value& self, const CallArgs& args) {
  Bound bound(in, "replace", args, {"old", "new", "count"}, 2);
  const std::string* from = bound.StrOrNull(0);
  const std::string* to = bound.StrOrNull(1);
  const Int count = bound.IntOr(2, -1);
  if (!bound.ok()) return {};
  if (from == nullptr || to == nullptr) {
    return in.Fail("replace() needs two strings");
  }
  return ReplaceText(in, TextOf(self), *from, *to, count);
}

Value PadMethod(In& in, const Value& self, const CallArgs& args, char align) {
  Bound bound(in, "center", args, {"width", "fillchar"}, 1);
  const Int width = bound.IntOr(0, 0);
  const std::string* fill = bound.StrOrNull(1);
  if (!bound.ok()) return {};
  if (fill != nullptr && CountCharacters(*fill) != 1) {
    return in.Fail("the fill character must be exactly one character long");
  }
  return Pad(in, TextOf(self), width, fill == nullptr ? " " : *fill, align);
}

Value ZeroFill(In& in, const Value& self, const CallArgs& args) {
  Bound bound(in, "zfill", args, {"width"}, 1);
  const Int width = bound.IntOr(0, 0);
  if (!bound.ok()) return {};
  const std::string& text = TextOf(self);
  const bool is_signed = !text.empty() && (text[0] == '+' || text[0] == '-');
  const Value padded = Pad(in, is_signed ? text.substr(1) : text,
                           is_signed ? width - 1 : width, "0", '>');
  if (!is_signed || in.failed()) return padded;
  return MakeStr(text.substr(0, 1) + padded.AsStr()->text);
}

Value SplitLinesMethod(In& in, const Value& self, const CallArgs& args) {
  Bound bound(in, "splitlines", args, {"keepends"});
  if (!bound.ok() || !in.Charge(TextOf(self).size())) return {};
  return MakeStrings(SplitLines(TextOf(self), bound.TruthOr(0, false)));
}

Value SwapCase(In&, const Value& self, const CallArgs&) {
  std::string out;
  const std::string& text = TextOf(self);
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const uint32_t c = DecodeUtf8(text, &pos);
    const std::string one = text.substr(start, pos - start);
    out += IsUpper(c) ? ToLower(one) : IsLower(c) ? ToUpper(one) : one;
  }
  return MakeStr(std::move(out));
}

// isalpha and the like: not empty, and all characters are.
template <bool (*Is)(char32_t)>
Value AllAre(In&, const Value& self, const CallArgs&) {
  const std::string& text = TextOf(self);
  for (size_t pos = 0; pos < text.size();) {
    if (!Is(DecodeUtf8(text, &pos))) return false;
  }
  return !text.empty();
}

bool IsAlnum(char32_t c) {
  return IsAlpha(c) || IsDecimal(c) || IsDigit(c) || IsNumeric(c);
}

Value IsTitleText(In&, const Value& self, const CallArgs&) {
  bool cased = false, in_word = false;
  const std::string& text = TextOf(self);
  for (size_t pos = 0; pos < text.size();) {
    const uint32_t c = DecodeUtf8(text, &pos);
    const bool upper = IsUpper(c) || IsTitle(c);
    const bool lower = IsLower(c);
    if ((upper && in_word) || (lower && !in_word)) return false;
    in_word = upper || lower;
    cased = cased || in_word;
  }
  return cased;
}

const std::map<std::string, Method>& StrMethods() {
  static const auto& methods = *new std::map<std::string, Method>{
      {"capitalize",
       [](In&, const Value& s, const CallArgs&) {
         return MakeStr(Capitalize(TextOf(s)));
       }},
      {"casefold",
       [](In&, const Value& s, const CallArgs&) {
         return MakeStr(CaseFold(TextOf(s)));
       }},
      {"center", [](In& in, const Value& s,
                    const CallArgs& a) { return PadMethod(in, s, a, '^'); }},
      {"count", CountMethod},
      {"endswith",
       [](In& in, const Value& s, const CallArgs& a) {
         return AffixMethod(in, s, a, true);
       }},
      {"find",
       [](In& in, const Value& s, const CallArgs& a) {
         return FindMethod(in, s, a, false, false);
       }},
      {"format",
       [](In& in, const Value& s, const CallArgs& a) {
         return FormatBraces(in, TextOf(s), a);
       }},
      {"index",
       [](In& in, const Value& s, const CallArgs& a) {
         return FindMethod(in, s, a, false, true);
       }},
      {"isalnum", AllAre<IsAlnum>},
      {"isalpha", AllAre<IsAlpha>},
      {"isascii", [](In&, const Value& s,
                     const CallArgs&) { return Value(IsAscii(TextOf(s))); }},
      {"isdecimal", AllAre<IsDecimal>},
      {"isdigit", AllAre<IsDigit>},
      {"islower",
       [](In&, const Value& s, const CallArgs&) {
         return Value(IsLowerText(TextOf(s)));
       }},
      {"isnumeric", AllAre<IsNumeric>},
      {"isprintable",
       [](In& in, const Value& s, const CallArgs& a) {
         return TextOf(s).empty() ? Value(true) : AllAre<IsPrintable>(in, s, a);
       }},
      {"isspace", AllAre<IsSpace>},
      {"istitle", IsTitleText},
      {"isupper",
       [](In&, const Value& s, const CallArgs&) {
         return Value(IsUpperText(TextOf(s)));
       }},
      {"join", JoinMethod},
      {"ljust", [](In& in, const Value& s,
                   const CallArgs& a) { return PadMethod(in, s, a, '<'); }},
      {"lower", [](In&, const Value& s,
                   const CallArgs&) { return MakeStr(ToLower(TextOf(s))); }},
      {"lstrip",
       [](In& in, const Value& s, const CallArgs& a) {
         return StripMethod(in, s, a, true, false);
       }},
      {"partition",
       [](In& in, const Value& s, const CallArgs& a) {
         return PartitionMethod(in, s, a, false);
       }},
      {"removeprefix",
       [](In& in, const Value& s, const CallArgs& a) {
         return RemoveAffix(in, s, a, false);
       }},
      {"removesuffix",
       [](In& in, const Value& s, const CallArgs& a) {
         return RemoveAffix(in, s, a, true);
       }},
      {"replace", ReplaceMethod},
      {"rfind",
       [](In& in, const Value& s, const CallArgs& a) {
         return FindMethod(in, s, a, true, false);
       }},
      {"rindex",
       [](In& in, const Value& s, const CallArgs& a) {
         return FindMethod(in, s, a, true, true);
       }},
      {"rjust", [](In& in, const Value& s,
                   const CallArgs& a) { return PadMethod(in, s, a, '>'); }},
      {"rpartition",
       [](In& in, const Value& s, const CallArgs& a) {
         return PartitionMethod(in, s, a, true);
       }},
      {"rsplit", [](In& in, const Value& s,
                    const CallArgs& a) { return SplitMethod(in, s, a, true); }},
      {"rstrip",
       [](In& in, const Value& s, const CallArgs& a) {
         return StripMethod(in, s, a, false, true);
       }},
      {"split", [](In& in, const Value& s,
                   const CallArgs& a) { return SplitMethod(in, s, a, false); }},
      {"splitlines", SplitLinesMethod},
      {"startswith",
       [](In& in, const Value& s, const CallArgs& a) {
         return AffixMethod(in, s, a, false);
       }},
      {"strip",
       [](In& in, const Value& s, const CallArgs& a) {
         return StripMethod(in, s, a, true, true);
       }},
      {"swapcase", SwapCase},
      {"title", [](In&, const Value& s,
                   const CallArgs&) { return MakeStr(TitleCase(TextOf(s))); }},
      {"upper", [](In&, const Value& s,
                   const CallArgs&) { return MakeStr(ToUpper(TextOf(s))); }},
      {"zfill", ZeroFill},
  };
  return methods;
}

// Of str, but not supported here: calling one says so.
bool IsOtherStrMethod(const std::string& name) {
  return name == "encode" || name == "expandtabs" || name == "format_map" ||
         name == "isidentifier" || name == "maketrans" || name == "translate";
}

// --- dict

Value DictView(In& in, const Value& self, SeqKind kind) {
  std::vector<Value> items;
  if (!in.Charge(8 * self.AsDict()->items.size())) return {};
  for (const auto& [key, value] : self.AsDict()->items) {
    items.push_back(kind == SeqKind::kKeys     ? key
                    : kind == SeqKind::kValues ? value
                                               : MakeTuple({key, value}));
  }
  return MakeSeq(kind, std::move(items));
}

const std::map<std::string, Method>& DictMethods() {
  static const auto& methods = *new std::map<std::string, Method>{
      {"copy", [](In&, const Value& d, const CallArgs&) { return d; }},
      {"get",
       [](In& in, const Value& d, const CallArgs& a) {
         Bound bound(in, "get", a, {"key", "default"}, 1);
         if (!bound.ok()) return Value();
         if (HashKey(*bound[0]).empty()) {
           return in.Fail(
               absl::StrCat("unhashable type: '", TypeName(*bound[0]), "'"));
         }
         const Value* found = DictGetValue(*d.AsDict(), *bound[0]);
         if (found != nullptr) return *found;
         return bound[1] == nullptr ? Value() : *bound[1];
       }},
      {"items",
       [](In& in, const Value& d, const CallArgs&) {
         return DictView(in, d, SeqKind::kItems);
       }},
      {"keys", [](In& in, const Value& d,
                  const CallArgs&) { return DictView(in, d, SeqKind::kKeys); }},
      {"values",
       [](In& in, const Value& d, const CallArgs&) {
         return DictView(in, d, SeqKind::kValues);
       }},
  };
  return methods;
}

// --- list, tuple, range

Value SeqCount(In& in, const Value& self, const CallArgs& args) {
  Bound bound(in, "count", args, {"value"}, 1);
  if (!bound.ok()) return {};
  if (!in.ChargeBytes(ExtentOf(self).size)) return {};
  const auto& items = self.AsSeq()->items;
  return static_cast<size_t>(
      std::count_if(items.begin(), items.end(),
                    [&](const Value& v) { return Equal(v, *bound[0]); }));
}

Value SeqIndex(In& in, const Value& self, const CallArgs& args) {
  Bound bound(in, "index", args, {"value"}, 1);
  if (!bound.ok()) return {};
  if (!in.ChargeBytes(ExtentOf(self).size)) return {};
  const auto& items = self.AsSeq()->items;
  const auto it = std::find_if(items.begin(), items.end(), [&](const Value& v) {
    return Equal(v, *bound[0]);
  });
  if (it == items.end()) return in.Fail("value is not in list");
  return static_cast<size_t>(it - items.begin());
}

const std::map<std::string, Method>& SeqMethods() {
  static const auto& methods = *new std::map<std::string, Method>{
      {"copy", [](In&, const Value& s, const CallArgs&) { return s; }},
      {"count", SeqCount},
      {"index", SeqIndex},
  };
  return methods;
}

// --- loop

Value Cycle(In& in, const Value& self, const CallArgs& args) {
  if (args.positional.empty()) return in.Fail("no items for cycling given");
  return args.positional[self.AsLoop()->index % args.positional.size()];
}

Value Changed(In&, const Value& self, const CallArgs& args) {
  Loop& loop = *self.AsLoop();
  Value value = MakeTuple(args.positional);
  if (loop.ever_changed && Equal(loop.last_changed, value)) return false;
  loop.ever_changed = true;
  loop.last_changed = std::move(value);
  return true;
}

const std::map<std::string, Method>& LoopMethods() {
  static const auto& methods = *new std::map<std::string, Method>{
      {"changed", Changed}, {"cycle", Cycle}};
  return methods;
}

bool GetLoopAttribute(const Loop& loop, const std::string& name, Value& out) {
  const size_t length = loop.items.size();
  // A loop kept beyond its end stays at its last item.
  const size_t index = length == 0 ? 0 : std::min(loop.index, length - 1);
  if (name == "index") {
    out = index + 1;
  } else if (name == "index0") {
    out = index;
  } else if (name == "revindex") {
    out = length - index;
  } else if (name == "revindex0") {
    out = length - index - 1;
  } else if (name == "first") {
    out = index == 0;
  } else if (name == "last") {
    out = index + 1 == length;
  } else if (name == "length") {
    out = length;
  } else if (name == "depth") {
    out = loop.depth;
  } else if (name == "depth0") {
    out = loop.depth - 1;
  } else if (name == "previtem") {
    out = index == 0 ? Value::MakeUndefined("there is no previous item")
                     : loop.items[index - 1];
  } else if (name == "nextitem") {
    out = index + 1 >= length ? Value::MakeUndefined("there is no next item")
                              : loop.items[index + 1];
  } else {
    return false;
  }
  return true;
}

bool IsMutator(const Value& object, const std::string& name) {
  const auto is_one_of = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(),
                       [&](const char* n) { return name == n; });
  };
  if (object.AsDict() != nullptr) {
    return is_one_of({"clear", "pop", "popitem", "setdefault", "update"});
  }
  if (object.IsKind(SeqKind::kList)) {
    return is_one_of({"append", "clear", "pop", "reverse", "insert", "sort",
                      "extend", "remove"});
  }
  return false;
}

// The methods of a value's type; null if it has none.
const std::map<std::string, Method>* MethodsOf(const Value& object) {
  if (object.AsStr() != nullptr) return &StrMethods();
  if (object.AsDict() != nullptr) return &DictMethods();
  if (object.AsLoop() != nullptr) return &LoopMethods();
  if (object.IsKind(SeqKind::kList) || object.IsKind(SeqKind::kTuple) ||
      object.IsKind(SeqKind::kGroup) || object.IsKind(SeqKind::kRange)) {
    return &SeqMethods();
  }
  return nullptr;
}

}  // namespace

bool GetMethod(const Value& object, const std::string& name, Value& out) {
  if (const Namespace* ns = object.AsNamespace()) {
    const auto it = ns->attributes.find(name);
    if (it == ns->attributes.end()) return false;
    out = it->second;
    return true;
  }
  if (object.IsKind(SeqKind::kGroup) && (name == "grouper" || name == "list")) {
    out = object.AsSeq()->items[name == "list" ? 1 : 0];
    return true;
  }
  if (const Loop* loop = object.AsLoop();
      loop != nullptr && GetLoopAttribute(*loop, name, out)) {
    return true;
  }
  if (const Callable* callable = object.AsCallable();
      callable != nullptr && callable->kind == Callable::Kind::kMacro &&
      name == "name") {
    out = MakeStr(callable->name);
    return true;
  }
  if (IsMutator(object, name)) {
    out = Value::MakeUndefined(absl::StrCat("access to attribute '", name,
                                            "' of '", TypeName(object),
                                            "' object is unsafe."));
    return true;
  }
  const auto* methods = MethodsOf(object);
  if (methods == nullptr) return false;
  const bool is_other = object.AsStr() != nullptr && IsOtherStrMethod(name);
  if (methods->count(name) == 0 && !is_other) return false;
  if (name == "copy" && !object.IsKind(SeqKind::kList) &&
      object.AsDict() == nullptr) {
    return false;
  }
  auto method = std::make_shared<Callable>();
  method->kind = Callable::Kind::kMethod;
  method->name = name;
  method->self = object;
  out = Value(std::shared_ptr<const Callable>(std::move(method)));
  return true;
}

Value CallMethod(Interpreter& in, const Value& self, const std::string& name,
                 const CallArgs& args) {
  const auto* methods = MethodsOf(self);
  const auto it = methods->find(name);
  if (it == methods->end()) {
    return in.Unsupported(absl::StrCat("str.", name, "()"));
  }
  return it->second(in, self, args);
}

}  // namespace sluice::jinja
