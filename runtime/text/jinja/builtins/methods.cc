#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/text/utf8.h"
#include "runtime/text/jinja/builtins/builtins.h"
#include "runtime/text/jinja/services.h"
#include "runtime/text/jinja/text_ops.h"
#include "runtime/text/unicode/python_text.h"

// Attributes and methods of Python's types that the sandbox allows.

namespace sluice::jinja {
namespace {

using In = Services;
using Method = Value (*)(In&, const Value&, const CallArgs&);

const std::string& TextOf(const Value& self) { return self.AsStr()->text; }

// --- str

template <bool kLeft, bool kRight>
Value StripMethod(In& in, const Value& self, const CallArgs& args) {
  Bound bound(in, "strip", args, {"chars"});
  const std::string* chars = bound.StrOrNull(0);
  if (!bound.ok() || (chars != nullptr &&
                      !in.Charge(TextOf(self).size() * chars->size() / 16))) {
    return {};
  }
  return MakeStr(std::string(Strip(TextOf(self), chars, kLeft, kRight)));
}

Value MakeStrings(std::vector<std::string> texts) {
  std::vector<Value> items;
  items.reserve(texts.size());
  for (std::string& text : texts) items.push_back(MakeStr(std::move(text)));
  return MakeList(std::move(items));
}

// Evaluates split and rsplit without a separator. `limit` < 0: no limit. The
// part beyond the limit keeps the white space at its outer end.
std::vector<std::string> SplitBySpace(const std::string& text, Int limit,
                                      bool from_right) {
  struct Word {
    size_t begin, end;
  };
  std::vector<Word> words;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const bool space = IsSpace(DecodeUtf8(text, &pos));
    if (!space && !in_word) words.push_back({begin, pos});
    if (!space) words.back().end = pos;
    in_word = !space;
  }
  if (limit >= 0 && limit < static_cast<Int>(words.size())) {
    const size_t alone = static_cast<size_t>(limit);
    if (from_right) {
      words.erase(words.begin(), words.end() - (alone + 1));
      words.front().begin = 0;
    } else {
      words.resize(alone + 1);
      words.back().end = text.size();
    }
  }
  std::vector<std::string> parts;
  for (const Word& word : words) {
    parts.push_back(text.substr(word.begin, word.end - word.begin));
  }
  return parts;
}

template <bool kFromRight>
Value SplitMethod(In& in, const Value& self, const CallArgs& args) {
  Bound bound(in, kFromRight ? "rsplit" : "split", args, {"sep", "maxsplit"});
  const std::string* separator = bound.StrOrNull(0);
  const Int limit = bound.IntOr(1, -1);
  const std::string& text = TextOf(self);
  if (!bound.ok() || !in.Charge(text.size())) return {};
  if (separator == nullptr) {
    return MakeStrings(SplitBySpace(text, limit, kFromRight));
  }
  if (separator->empty()) return in.Fail("empty separator");
  std::vector<size_t> places;
  for (size_t pos = 0;
       (pos = FindText(text, *separator, pos)) != absl::string_view::npos;
       pos += separator->size()) {
    places.push_back(pos);
  }
  if (kFromRight && limit >= 0) {
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

template <bool kFromRight>
Value PartitionMethod(In& in, const Value& self, const CallArgs& args) {
  Bound bound(in, "partition", args, {"sep"}, 1);
  const std::string* separator = bound.StrOrNull(0);
  if (!bound.ok()) return {};
  if (separator == nullptr || separator->empty()) {
    return in.Fail("empty separator");
  }
  const std::string& text = TextOf(self);
  if (kFromRight && !in.ChargeBytes(text.size() * separator->size())) return {};
  const size_t place =
      kFromRight ? text.rfind(*separator) : FindText(text, *separator);
  if (place == std::string::npos) {
    const Value none = MakeStr("");
    return kFromRight ? MakeTuple({none, none, self})
                      : MakeTuple({self, none, none});
  }
  return MakeTuple({MakeStr(text.substr(0, place)), MakeStr(*separator),
                    MakeStr(text.substr(place + separator->size()))});
}

// Gets the part of a string that optional start and end arguments (code points)
// select, and its start in code points. False if it is out of range.
bool Window(Bound& bound, const std::string& text, absl::string_view& window,
            Int& first) {
  first = 0;
  window = text;
  const bool has_start = bound.Given(1) != nullptr;
  const bool has_end = bound.Given(2) != nullptr;
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

template <bool kFromRight, bool kMustFind>
Value FindMethod(In& in, const Value& self, const CallArgs& args) {
  Bound bound(in, "find", args, {"sub", "start", "end"}, 1);
  const std::string* what = bound.StrOrNull(0);
  if (!bound.ok()) return {};
  if (what == nullptr) return in.Fail("find() needs a string");
  absl::string_view window;
  Int first = 0;
  size_t place = absl::string_view::npos;
  if (Window(bound, TextOf(self), window, first)) {
    if (kFromRight && !in.ChargeBytes(window.size() * what->size())) return {};
    place = kFromRight ? window.rfind(*what) : FindText(window, *what);
  }
  if (!bound.ok()) return {};
  if (place == absl::string_view::npos) {
    return kMustFind ? in.Fail("substring not found") : Value(-1);
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

template <bool kAtEnd>
Value AffixMethod(In& in, const Value& self, const CallArgs& args) {
  constexpr absl::string_view kName = kAtEnd ? "endswith" : "startswith";
  Bound bound(in, kName, args, {"affix", "start", "end"}, 1);
  if (!bound.ok()) return {};
  std::vector<Value> affixes = {*bound[0]};
  if (bound[0]->IsKind(SeqKind::kTuple)) affixes = in.Items(*bound[0]);
  absl::string_view window;
  Int first = 0;
  const bool in_reach = Window(bound, TextOf(self), window, first);
  for (const Value& affix : affixes) {
    const auto* str = affix.AsStr();
    if (str == nullptr) {
      return in.Fail(kName, " first arg must be str or a tuple of str, not ",
                     TypeName(affix));
    }
    if (in_reach && (kAtEnd ? absl::EndsWith(window, str->text)
                            : absl::StartsWith(window, str->text))) {
      return true;
    }
  }
  return false;
}

template <bool kAtEnd>
Value RemoveAffix(In& in, const Value& self, const CallArgs& args) {
  Bound bound(in, "removeprefix", args, {"affix"}, 1);
  const std::string* affix = bound.StrOrNull(0);
  if (!bound.ok()) return {};
  if (affix == nullptr) return in.Fail("removeprefix() needs a string");
  const std::string& text = TextOf(self);
  if (kAtEnd && absl::EndsWith(text, *affix)) {
    return MakeStr(text.substr(0, text.size() - affix->size()));
  }
  if (!kAtEnd && absl::StartsWith(text, *affix)) {
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
      return in.Fail("sequence item: expected str instance, ", TypeName(item),
                     " found");
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

template <char kAlign>
Value PadMethod(In& in, const Value& self, const CallArgs& args) {
  Bound bound(in, "center", args, {"width", "fillchar"}, 1);
  const Int width = bound.IntOr(0, 0);
  const std::string* fill = bound.StrOrNull(1);
  if (!bound.ok()) return {};
  if (fill != nullptr && CountCharacters(*fill) != 1) {
    return in.Fail("the fill character must be exactly one character long");
  }
  return Pad(in, TextOf(self), width, fill == nullptr ? " " : *fill, kAlign);
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

// Evaluates isalpha and the like: not empty, and true of all characters.
template <bool (*kIs)(char32_t)>
Value AllAre(In&, const Value& self, const CallArgs&) {
  const std::string& text = TextOf(self);
  for (size_t pos = 0; pos < text.size();) {
    if (!kIs(DecodeUtf8(text, &pos))) return false;
  }
  return !text.empty();
}

bool IsAlnum(char32_t c) {
  return IsAlpha(c) || IsDecimal(c) || IsDigit(c) || IsNumeric(c);
}

bool IsTitleText(absl::string_view text) {
  bool cased = false, in_word = false;
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

template <std::string (*kMap)(absl::string_view)>
Value MappedText(In&, const Value& self, const CallArgs&) {
  return MakeStr(kMap(TextOf(self)));
}

template <bool (*kIs)(absl::string_view)>
Value WholeIs(In&, const Value& self, const CallArgs&) {
  return kIs(TextOf(self));
}

Value FormatMethod(In& in, const Value& self, const CallArgs& args) {
  return FormatBraces(in, TextOf(self), args);
}

Value IsPrintableMethod(In& in, const Value& self, const CallArgs& args) {
  return TextOf(self).empty() ||
         AllAre<IsPrintable>(in, self, args).bool_value();
}

using Methods = std::map<std::string, Method>;

const Methods& StrMethods() {
  static const auto& methods = *new Methods{
      {"capitalize", MappedText<Capitalize>},
      {"casefold", MappedText<CaseFold>},
      {"center", PadMethod<'^'>},
      {"count", CountMethod},
      {"endswith", AffixMethod<true>},
      {"find", FindMethod<false, false>},
      {"format", FormatMethod},
      {"index", FindMethod<false, true>},
      {"isalnum", AllAre<IsAlnum>},
      {"isalpha", AllAre<IsAlpha>},
      {"isascii", WholeIs<IsAscii>},
      {"isdecimal", AllAre<IsDecimal>},
      {"isdigit", AllAre<IsDigit>},
      {"islower", WholeIs<IsLowerText>},
      {"isnumeric", AllAre<IsNumeric>},
      {"isprintable", IsPrintableMethod},
      {"isspace", AllAre<IsSpace>},
      {"istitle", WholeIs<IsTitleText>},
      {"isupper", WholeIs<IsUpperText>},
      {"join", JoinMethod},
      {"ljust", PadMethod<'<'>},
      {"lower", MappedText<ToLower>},
      {"lstrip", StripMethod<true, false>},
      {"partition", PartitionMethod<false>},
      {"removeprefix", RemoveAffix<false>},
      {"removesuffix", RemoveAffix<true>},
      {"replace", ReplaceMethod},
      {"rfind", FindMethod<true, false>},
      {"rindex", FindMethod<true, true>},
      {"rjust", PadMethod<'>'>},
      {"rpartition", PartitionMethod<true>},
      {"rsplit", SplitMethod<true>},
      {"rstrip", StripMethod<false, true>},
      {"split", SplitMethod<false>},
      {"splitlines", SplitLinesMethod},
      {"startswith", AffixMethod<false>},
      {"strip", StripMethod<true, true>},
      {"swapcase", SwapCase},
      {"title", MappedText<TitleCase>},
      {"upper", MappedText<ToUpper>},
      {"zfill", ZeroFill},
  };
  return methods;
}

// Whether str has this method, but it is not supported here: a call fails.
bool IsOtherStrMethod(const std::string& name) {
  return name == "encode" || name == "expandtabs" || name == "format_map" ||
         name == "isidentifier" || name == "maketrans" || name == "translate";
}

// --- dict

template <SeqKind kKind>
Value DictView(In& in, const Value& self, const CallArgs&) {
  std::vector<Value> items;
  if (!in.Charge(8 * self.AsDict()->items.size())) return {};
  for (const auto& [key, value] : self.AsDict()->items) {
    items.push_back(kKind == SeqKind::kKeys     ? key
                    : kKind == SeqKind::kValues ? value
                                                : MakeTuple({key, value}));
  }
  return MakeSeq(kKind, std::move(items));
}

Value DictGetMethod(In& in, const Value& self, const CallArgs& args) {
  Bound bound(in, "get", args, {"key", "default"}, 1);
  if (!bound.ok()) return {};
  if (HashKey(*bound[0]).empty()) return in.FailUnhashable(*bound[0]);
  const Value* found = DictGetValue(*self.AsDict(), *bound[0]);
  if (found != nullptr) return *found;
  return bound[1] == nullptr ? Value() : *bound[1];
}

Value Copy(In&, const Value& self, const CallArgs&) { return self; }

const Methods& DictMethods() {
  static const auto& methods =
      *new Methods{{"copy", Copy},
                   {"get", DictGetMethod},
                   {"items", DictView<SeqKind::kItems>},
                   {"keys", DictView<SeqKind::kKeys>},
                   {"values", DictView<SeqKind::kValues>}};
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

const Methods& SeqMethods() {
  static const auto& methods =
      *new Methods{{"copy", Copy}, {"count", SeqCount}, {"index", SeqIndex}};
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

const Methods& LoopMethods() {
  static const auto& methods =
      *new Methods{{"changed", Changed}, {"cycle", Cycle}};
  return methods;
}

bool GetLoopAttribute(const Loop& loop, const std::string& name, Value& out) {
  const size_t length = loop.items.size();
  // A loop kept beyond its end stays at its last item.
  const size_t index = length == 0 ? 0 : std::min(loop.index, length - 1);
  const auto is = [&](absl::string_view known, const auto& value) {
    if (name != known) return false;
    out = Value(value);
    return true;
  };
  const auto neighbour = [&](absl::string_view known, bool there, size_t at,
                             const char* none) {
    return name == known &&
           is(known, there ? loop.items[at] : Value::MakeUndefined(none));
  };
  return is("index", index + 1) || is("index0", index) ||
         is("revindex", length - index) ||
         is("revindex0", length - index - 1) || is("first", index == 0) ||
         is("last", index + 1 == length) || is("length", length) ||
         is("depth", loop.depth) || is("depth0", loop.depth - 1) ||
         neighbour("previtem", index > 0, index - 1,
                   "there is no previous item") ||
         neighbour("nextitem", index + 1 < length, index + 1,
                   "there is no next item");
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
const Methods* MethodsOf(const Value& object) {
  if (object.AsStr() != nullptr) return &StrMethods();
  if (object.AsDict() != nullptr) return &DictMethods();
  if (object.AsLoop() != nullptr) return &LoopMethods();
  if (object.AsSeq() != nullptr && !object.IsView()) return &SeqMethods();
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

Value GetAttr(Services& in, const Value& object, const std::string& name) {
  if (in.failed() || in.FailIfUndefined(object)) return {};
  Value value;
  if (GetMethod(object, name, value)) return value;
  if (const Dict* dict = object.AsDict()) {
    if (const Value* found = DictGet(*dict, name)) return *found;
  }
  return NoAttribute(object, name);
}

Value GetItem(Services& in, const Value& object, const Value& key) {
  if (in.failed() || in.FailIfUndefined(object)) return {};
  if (const Dict* dict = object.AsDict()) {
    if (const Value* found = DictGetValue(*dict, key)) return *found;
  } else if (key.IsInt() || key.IsBool()) {
    Int index = key.int_value();
    if (const Seq* seq = object.AsSeq(); seq != nullptr && !object.IsView()) {
      const Int size = static_cast<Int>(seq->items.size());
      if (index < 0) index += size;
      if (index >= 0 && index < size) {
        return seq->items[static_cast<size_t>(index)];
      }
    } else if (const auto* str = object.AsStr()) {
      if (!in.ChargeBytes(str->text.size())) return {};
      const Int size = static_cast<Int>(CountCharacters(str->text));
      if (index < 0) index += size;
      if (index >= 0 && index < size) {
        size_t pos = 0;
        for (Int i = 0; i < index; ++i) DecodeUtf8(str->text, &pos);
        const size_t start = pos;
        DecodeUtf8(str->text, &pos);
        return MakeStr(str->text.substr(start, pos - start));
      }
    }
  }
  if (const auto* name = key.AsStr()) {
    Value value;
    if (GetMethod(object, name->text, value)) return value;
  }
  if (!in.ChargeBytes(ExtentOf(key).size)) return {};
  std::string text;
  AppendRepr(key, text);
  return Value::MakeUndefined(
      absl::StrCat("'", TypeName(object), " object' has no element ", text));
}

Value NoAttribute(const Value& object, absl::string_view name) {
  return Value::MakeUndefined(absl::StrCat(
      "'", TypeName(object), " object' has no attribute '", name, "'"));
}

Value CallMethod(Services& in, const Value& self, const std::string& name,
                 const CallArgs& args) {
  const auto* methods = MethodsOf(self);
  const auto it = methods->find(name);
  if (it == methods->end()) {
    return in.Unsupported("str.", name, "()");
  }
  return it->second(in, self, args);
}

}  // namespace sluice::jinja
