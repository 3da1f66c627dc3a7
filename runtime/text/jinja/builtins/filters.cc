// This file is long because it has one small function for each of Jinja's
// filters, and their table.

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/text/utf8.h"
#include "runtime/text/jinja/builtins/builtins.h"
#include "runtime/text/jinja/services.h"
#include "runtime/text/jinja/text_ops.h"
#include "runtime/text/unicode/python_text.h"

// The filters of jinja2.filters, one function each, with parameters in order.

namespace sluice::jinja {
namespace {

using In = Services;

Value UndefinedOf(const char* message) { return Value::MakeUndefined(message); }

Value IgnoreCase(const Value& value) {
  const auto* str = value.AsStr();
  return str == nullptr ? value : MakeStr(ToLower(str->text));
}

// The "attribute" argument of many filters: "a.b.0" looks up step by step.
class AttributeGetter {
 public:
  AttributeGetter(In& in, const Value* attribute) : in_(in) {
    if (attribute == nullptr || attribute->IsNone()) return;
    const auto* path = attribute->AsStr();
    if (path == nullptr) {
      parts_.push_back(*attribute);
      return;
    }
    for (const absl::string_view part : absl::StrSplit(path->text, '.')) {
      const bool digits = !part.empty() && std::all_of(part.begin(), part.end(),
                                                       absl::ascii_isdigit);
      const std::optional<Int> index =
          digits ? ParseInt(part, 10) : std::nullopt;
      parts_.push_back(index ? Value(*index) : MakeStr(std::string(part)));
    }
  }
  Value operator()(const Value& item, const Value* fallback = nullptr) const {
    Value value = item;
    for (const Value& part : parts_) {
      value = GetItem(in_, value, part);
      if (fallback != nullptr && value.IsUndefined()) value = *fallback;
    }
    return value;
  }

 private:
  In& in_;
  std::vector<Value> parts_;
};

// Sorts by keys, stably. Work is charged per comparison.
std::vector<Value> SortBy(In& in, std::vector<Value> items,
                          const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (!in.ChargeBytes(
            std::min(ExtentOf(keys[a]).size, ExtentOf(keys[b]).size))) {
      return false;
    }
    return Compare(in, keys[reverse ? b : a], keys[reverse ? a : b]) == -1;
  });
  std::vector<Value> sorted;
  sorted.reserve(items.size());
  for (const size_t i : order) sorted.push_back(std::move(items[i]));
  return sorted;
}

Value Abs(In& in, const Value& v, const CallArgs&) {
  if (v.IsFloat()) return std::fabs(v.float_value());
  if (in.FailIfUndefined(v)) return {};
  if (!v.IsNumber()) {
    return in.Fail("bad operand type for abs(): '", TypeName(v), "'");
  }
  return Multiply(in, v, Value(v.int_value() < 0 ? -1 : 1));
}

Value Attr(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "attr", args, {"name"}, 1);
  const std::string* name = bound.StrOrNull(0);
  if (!bound.ok() || name == nullptr || in.FailIfUndefined(v)) return {};
  Value value;
  if (GetMethod(v, *name, value)) return value;
  return NoAttribute(v, *name);
}

Value Batch(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "batch", args, {"linecount", "fill_with"}, 1);
  const Int count = bound.IntOr(0, 1);
  if (!bound.ok()) return {};
  std::vector<Value> rows, row;
  for (Value& item : in.Items(v)) {
    if (static_cast<Int>(row.size()) == count) {
      rows.push_back(MakeList(std::exchange(row, {})));
    }
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (const Value* fill = bound.Given(1)) {
      while (static_cast<Int>(row.size()) < count && in.Charge(4)) {
        row.push_back(*fill);
      }
    }
    rows.push_back(MakeList(std::move(row)));
  }
  return MakeIterator(std::move(rows));
}

Value Center(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "center", args, {"width"});
  const Int width = bound.IntOr(0, 80);
  return bound.ok() ? Pad(in, in.Str(v), width, " ", '^') : Value();
}

Value Length(In& in, const Value& v, const CallArgs&) {
  if (const auto* str = v.AsStr()) return CountCharacters(str->text);
  if (const Seq* seq = v.AsSeq()) return seq->items.size();
  if (const Dict* dict = v.AsDict()) return dict->items.size();
  if (const Loop* loop = v.AsLoop()) return loop->items.size();
  if (v.IsUndefined()) return 0;
  return in.Fail("object of type '", TypeName(v), "' has no len()");
}

Value Default(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "default", args, {"default_value", "boolean"});
  if (!bound.ok()) return {};
  if (!v.IsUndefined() && !(bound.TruthOr(1, false) && !Truth(v))) return v;
  return bound[0] == nullptr ? MakeStr("") : *bound[0];
}

Value DictSort(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "dictsort", args, {"case_sensitive", "by", "reverse"});
  const Dict* dict = v.AsDict();
  if (!bound.ok()) return {};
  if (dict == nullptr) return in.Fail("dictsort needs a mapping");
  const std::string* by = bound.StrOrNull(1);
  if (by != nullptr && *by != "key" && *by != "value") {
    return in.Fail("You can only sort by either \"key\" or \"value\"");
  }
  std::vector<Value> items, keys;
  for (const auto& [key, value] : dict->items) {
    items.push_back(MakeTuple({key, value}));
    const Value& by_what = by != nullptr && *by == "value" ? value : key;
    keys.push_back(bound.TruthOr(0, false) ? by_what : IgnoreCase(by_what));
  }
  in.Charge(8 * items.size());
  return MakeList(SortBy(in, std::move(items), keys, bound.TruthOr(2, false)));
}

// Makes a string that is not escaped again.
Value Marked(std::string text) {
  return Value(std::make_shared<const Str>(Str{std::move(text), true}));
}

Value Escape(In& in, const Value& v, const CallArgs&) {
  if (const auto* str = v.AsStr(); str != nullptr && str->markup) return v;
  const std::string text = in.Str(v);
  if (!in.ChargeString(5 * text.size())) return {};
  return Marked(absl::StrReplaceAll(text, {{"&", "&amp;"},
                                           {"<", "&lt;"},
                                           {">", "&gt;"},
                                           {"'", "&#39;"},
                                           {"\"", "&#34;"}}));
}

Value ForceEscape(In& in, const Value& v, const CallArgs& args) {
  return Escape(in, MakeStr(in.Str(v)), args);
}

Value Safe(In& in, const Value& v, const CallArgs&) {
  return Marked(in.Str(v));
}

// first and last.
template <bool kLast>
Value EndItem(In& in, const Value& v, const CallArgs&) {
  const char* const none = kLast ? "No last item, sequence was empty."
                                 : "No first item, sequence was empty.";
  if (Iterator* iterator = v.AsIterator()) {
    if (kLast) return in.Fail("'generator' object is not reversible");
    if (iterator->next == iterator->items.size()) return UndefinedOf(none);
    return iterator->items[iterator->next++];
  }
  if (const auto* str = v.AsStr()) {
    if (str->text.empty()) return UndefinedOf(none);
    return GetItem(in, v, Value(kLast ? -1 : 0));
  }
  const std::vector<Value> items = in.Items(v);
  if (items.empty()) return UndefinedOf(none);
  return kLast ? items.back() : items.front();
}

Value Float(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "float", args, {"default"});
  if (!bound.ok() || in.FailIfUndefined(v)) return {};
  if (v.IsNumber()) return v.float_value();
  if (const auto* str = v.AsStr()) {
    if (const auto number = ParseFloat(str->text)) return *number;
  }
  return bound[0] == nullptr ? Value(0.0) : *bound[0];
}

Value IntFilter(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "int", args, {"default", "base"});
  const Int base = bound.IntOr(1, 10);
  if (!bound.ok() || in.FailIfUndefined(v)) return {};
  const Value fallback = bound[0] == nullptr ? Value(0) : *bound[0];
  std::optional<double> number;
  if (v.IsInt() || v.IsBool()) return v.int_value();
  if (const auto* str = v.AsStr()) {
    if (base == 0 || (base >= 2 && base <= 36)) {
      if (const auto i = ParseInt(str->text, static_cast<int>(base))) return *i;
    }
    number = ParseFloat(str->text);
    if (number && !std::isfinite(*number)) return fallback;
  } else if (v.IsFloat()) {
    number = v.float_value();
    if (std::isnan(*number)) return fallback;
  }
  if (!number) return fallback;
  if (!(std::fabs(*number) < 1e37)) {
    return in.Fail("a number is too large for an integer");
  }
  return static_cast<Int>(*number);
}

Value Format(In& in, const Value& v, const CallArgs& args) {
  if (!args.positional.empty() && !args.keywords.empty()) {
    return in.Fail(
        "can't handle positional and keyword arguments at the same time");
  }
  if (args.keywords.empty()) {
    return FormatPercent(in, in.Str(v), MakeTuple(args.positional));
  }
  auto dict = std::make_shared<Dict>();
  for (const auto& [name, value] : args.keywords) {
    DictSet(*dict, MakeStr(name), value);
  }
  return FormatPercent(in, in.Str(v),
                       Value(std::shared_ptr<const Dict>(std::move(dict))));
}

Value GroupBy(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "groupby", args, {"attribute", "default", "case_sensitive"},
              1);
  if (!bound.ok()) return {};
  const AttributeGetter get(in, bound[0]);
  const Value* fallback = bound.Given(1);
  const bool case_sensitive = bound.TruthOr(2, false);
  const auto key_of = [&](const Value& item) {
    const Value key = get(item, fallback);
    return case_sensitive ? key : IgnoreCase(key);
  };
  std::vector<Value> items = in.Items(v), keys;
  for (const Value& item : items) keys.push_back(key_of(item));
  items = SortBy(in, std::move(items), keys, false);
  std::vector<Value> groups, group;
  for (size_t i = 0; i < items.size() && !in.failed(); ++i) {
    group.push_back(items[i]);
    if (i + 1 < items.size() && Equal(key_of(items[i]), key_of(items[i + 1]))) {
      continue;
    }
    const Value name = get(group[0], fallback);
    groups.push_back(
        MakeSeq(SeqKind::kGroup, {name, MakeList(std::exchange(group, {}))}));
  }
  return MakeList(std::move(groups));
}

Value Indent(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "indent", args, {"width", "first", "blank"});
  if (!bound.ok()) return {};
  if (in.FailIfUndefined(v)) return {};
  const auto* str = v.AsStr();
  if (str == nullptr) return in.Fail("indent needs a string");
  std::string indention(4, ' ');
  if (bound[0] != nullptr && bound[0]->AsStr() != nullptr) {
    indention = bound[0]->AsStr()->text;
  } else {
    const Int width = bound.IntOr(0, 4);
    if (!bound.ok() || !in.ChargeString(static_cast<uint64_t>(
                           std::clamp(width, Int{0}, Int{1} << 40)))) {
      return {};
    }
    indention.assign(static_cast<size_t>(std::max(width, Int{0})), ' ');
  }
  const std::vector<std::string> lines = SplitLines(str->text + "\n", false);
  if (!in.ChargeString(str->text.size() +
                       lines.size() * (indention.size() + 1))) {
    return {};
  }
  const bool blank = bound.TruthOr(2, false);
  std::string out = bound.TruthOr(1, false) ? indention : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !lines[i].empty())) out += indention;
    out += lines[i];
  }
  return MakeStr(std::move(out));
}

Value ItemsFilter(In& in, const Value& v, const CallArgs&) {
  if (v.IsUndefined()) return MakeIterator({});
  const Dict* dict = v.AsDict();
  if (dict == nullptr) {
    return in.Fail("Can only get item pairs from a mapping.");
  }
  in.Charge(8 * dict->items.size());
  std::vector<Value> items;
  for (const auto& [key, value] : dict->items) {
    items.push_back(MakeTuple({key, value}));
  }
  return MakeIterator(std::move(items));
}

Value Join(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "join", args, {"d", "attribute"});
  if (!bound.ok()) return {};
  const std::string separator = bound[0] == nullptr ? "" : in.Str(*bound[0]);
  const AttributeGetter get(in, bound[1]);
  std::string out;
  bool first = true;
  for (const Value& item : in.Items(v)) {
    if (!std::exchange(first, false)) out += separator;
    out += in.Str(get(item));
    // The charge also limits a long separator between many items.
    if (!in.ChargeString(out.size() > (size_t{1} << 20) ? separator.size()
                                                        : 1)) {
      return {};
    }
  }
  return MakeStr(std::move(out));
}

Value List(In& in, const Value& v, const CallArgs&) {
  return MakeList(in.Items(v));
}

template <std::string (*kMap)(absl::string_view)>
Value Mapped(In& in, const Value& v, const CallArgs&) {
  return MakeStr(kMap(in.Str(v)));
}

Value String(In& in, const Value& v, const CallArgs&) {
  return v.AsStr() != nullptr ? v : MakeStr(in.Str(v));
}

Value Map(In& in, const Value& v, const CallArgs& args) {
  if (!Truth(v)) return MakeIterator({});
  std::vector<Value> out;
  if (args.positional.empty() && !args.keywords.empty() &&
      args.keywords[0].first != "name") {
    Bound bound(in, "map", args, {"", "attribute", "default"});
    if (!bound.ok()) return {};
    if (bound[1] == nullptr) return in.Fail("map requires a filter argument");
    const AttributeGetter get(in, bound[1]);
    const Value* fallback = bound.Given(2);
    for (const Value& item : in.Items(v)) {
      out.push_back(get(item, fallback));
      if (in.failed()) return {};
    }
    return MakeIterator(std::move(out));
  }
  const auto* name =
      args.positional.empty() ? nullptr : args.positional[0].AsStr();
  if (name == nullptr) return in.Fail("map requires a filter argument");
  const CallArgs rest{{args.positional.begin() + 1, args.positional.end()},
                      args.keywords};
  for (const Value& item : in.Items(v)) {
    if (!in.ChargeBytes(8 + ExtentOf(item).size)) return {};
    out.push_back(CallFilter(in, name->text, item, rest));
    if (!in.CheckExtent(out.back())) return {};
  }
  return MakeIterator(std::move(out));
}

// min (-1) and max (1).
template <int kWanted>
Value Extreme(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, kWanted < 0 ? "min" : "max", args,
              {"case_sensitive", "attribute"});
  if (!bound.ok()) return {};
  const AttributeGetter get(in, bound[1]);
  const auto key_of = [&](const Value& item) {
    const Value key = get(item);
    return bound.TruthOr(0, false) ? key : IgnoreCase(key);
  };
  const std::vector<Value> items = in.Items(v);
  if (items.empty()) {
    return UndefinedOf("No aggregated item, sequence was empty.");
  }
  Value best = items[0];
  Value best_key = key_of(best);
  for (size_t i = 1; i < items.size() && !in.failed(); ++i) {
    Value key = key_of(items[i]);
    in.ChargeBytes(std::min(ExtentOf(key).size, ExtentOf(best_key).size));
    if (Compare(in, key, best_key) == kWanted) {
      best = items[i];
      best_key = std::move(key);
    }
  }
  return best;
}

// select, reject, selectattr, rejectattr.
template <bool kWanted, bool kByAttribute>
Value Select(In& in, const Value& v, const CallArgs& args) {
  if (!Truth(v)) return MakeIterator({});
  size_t used = 0;
  const Value* attribute = nullptr;
  if (kByAttribute) {
    if (args.positional.empty()) {
      return in.Fail("Missing parameter for attribute name");
    }
    attribute = &args.positional[used++];
  }
  const AttributeGetter get(in, attribute);
  const ::sluice::jinja::Str* test = nullptr;
  if (used < args.positional.size()) {
    test = args.positional[used++].AsStr();
    if (test == nullptr) return in.Fail("a test's name must be a string");
  }
  const CallArgs rest{{args.positional.begin() + static_cast<ptrdiff_t>(used),
                       args.positional.end()},
                      args.keywords};
  std::vector<Value> out;
  for (const Value& item : in.Items(v)) {
    const Value value = get(item);
    if (in.failed() || !in.ChargeBytes(8 + ExtentOf(value).size)) return {};
    const bool holds =
        test == nullptr ? Truth(value) : CallTest(in, test->text, value, rest);
    if (in.failed()) return {};
    if (holds == kWanted) out.push_back(item);
  }
  return MakeIterator(std::move(out));
}

Value Replace(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "replace", args, {"old", "new", "count"}, 2);
  if (!bound.ok()) return {};
  const Int count = bound.Given(2) == nullptr ? Int{-1} : bound.IntOr(2, -1);
  const std::string text = in.Str(v), from = in.Str(*bound[0]),
                    to = in.Str(*bound[1]);
  return bound.ok() ? ReplaceText(in, text, from, to, count) : Value();
}

Value Reverse(In& in, const Value& v, const CallArgs&) {
  if (v.AsStr() != nullptr) {
    std::u32string c = ToUtf32(v.AsStr()->text);
    std::reverse(c.begin(), c.end());
    return MakeStr(FromUtf32(c));
  }
  std::vector<Value> items = in.Items(v);
  std::reverse(items.begin(), items.end());
  // reversed() of a sequence is an iterator; of other values it is a list.
  return v.AsIterator() != nullptr ? MakeList(std::move(items))
                                   : MakeIterator(std::move(items));
}

// Rounds an integer to a power of ten, halves to even.
Int RoundInt(Int number, int digits) {
  if (digits >= 0) return number;
  if (digits < -37) return 0;
  Int unit = 1;
  for (int i = 0; i < -digits; ++i) unit *= 10;
  const Int magnitude = number < 0 ? -number : number;
  const Int rest = magnitude % unit;
  Int rounded = magnitude - rest;
  const bool up =
      rest > unit - rest || (rest == unit - rest && (rounded / unit) % 2 != 0);
  if (up) rounded += unit;
  return number < 0 ? -rounded : rounded;
}

Value Round(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "round", args, {"precision", "method"});
  const Int precision = std::clamp(bound.IntOr(0, 0), Int{-1000}, Int{1000});
  const std::string* method = bound.StrOrNull(1);
  if (!bound.ok()) return {};
  if (!v.IsNumber()) return in.Fail("round needs a number");
  const int digits = static_cast<int>(precision);
  if (method == nullptr || *method == "common") {
    if (v.IsFloat()) return RoundDecimal(v.float_value(), digits);
    return RoundInt(v.int_value(), digits);
  }
  if (*method != "ceil" && *method != "floor") {
    return in.Fail("method must be common, ceil or floor");
  }
  const double scale = std::pow(10.0, digits);
  const double scaled = v.float_value() * scale;
  const double whole =
      *method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  return whole == 0 ? 0.0 : whole / scale;  // floor and ceil give integers
}

Value Slice(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "slice", args, {"slices", "fill_with"}, 1);
  const Int slices = bound.IntOr(0, 1);
  if (!bound.ok()) return {};
  if (slices == 0) return in.Fail("integer division or modulo by zero");
  const std::vector<Value> items = in.Items(v);
  std::vector<Value> out;
  size_t taken = 0;
  const Int size = static_cast<Int>(items.size());
  for (Int i = 0; i < slices && in.Charge(8); ++i) {
    const Int count = size / slices + (i < size % slices ? 1 : 0);
    std::vector<Value> part(items.begin() + taken,
                            items.begin() + taken + static_cast<size_t>(count));
    taken += static_cast<size_t>(count);
    if (bound.Given(1) != nullptr && i >= size % slices) {
      part.push_back(*bound[1]);
    }
    out.push_back(MakeList(std::move(part)));
  }
  return MakeIterator(std::move(out));
}

Value Sort(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "sort", args, {"reverse", "case_sensitive", "attribute"});
  if (!bound.ok()) return {};
  std::vector<AttributeGetter> getters;
  if (bound[2] != nullptr && bound[2]->AsStr() != nullptr) {
    for (const absl::string_view part :
         absl::StrSplit(bound[2]->AsStr()->text, ',')) {
      const Value name = MakeStr(std::string(part));
      getters.emplace_back(in, &name);
    }
  } else {
    getters.emplace_back(in, bound[2]);
  }
  std::vector<Value> items = in.Items(v), keys;
  for (const Value& item : items) {
    std::vector<Value> key;
    for (const AttributeGetter& get : getters) {
      const Value part = get(item);
      in.ChargeBytes(ExtentOf(part).size);
      key.push_back(bound.TruthOr(1, false) ? part : IgnoreCase(part));
    }
    if (in.failed()) return {};
    keys.push_back(MakeList(std::move(key)));
  }
  return MakeList(SortBy(in, std::move(items), keys, bound.TruthOr(0, false)));
}

Value Sum(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "sum", args, {"attribute", "start"});
  if (!bound.ok()) return {};
  const AttributeGetter get(in, bound[0]);
  Value sum = bound[1] == nullptr ? Value(0) : *bound[1];
  if (sum.AsStr() != nullptr) return in.Fail("sum() can't sum strings");
  for (const Value& item : in.Items(v)) {
    sum = Add(in, sum, get(item));
    if (!in.CheckExtent(sum)) return {};
  }
  return sum;
}

Value Title(In& in, const Value& v, const CallArgs&) {
  const std::string text = in.Str(v);
  const auto separates = [](uint32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' ||
           IsSpace(c);
  };
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const bool is_separator = separates(DecodeUtf8(text, &pos));
    const size_t first_end = pos;
    while (pos < text.size()) {
      size_t next = pos;
      if (separates(DecodeUtf8(text, &next)) != is_separator) break;
      pos = next;
    }
    out += ToUpper(text.substr(start, first_end - start));
    out += ToLower(text.substr(first_end, pos - first_end));
  }
  return MakeStr(std::move(out));
}

Value Trim(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "trim", args, {"chars"});
  const std::string* chars = bound.StrOrNull(0);
  const std::string text = in.Str(v);
  if (!bound.ok() ||
      !in.Charge(chars == nullptr ? 1 : text.size() * chars->size() / 16)) {
    return {};
  }
  return MakeStr(std::string(Strip(text, chars, true, true)));
}

Value Truncate(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "truncate", args, {"length", "killwords", "end", "leeway"});
  const Int length = bound.IntOr(0, 255);
  const std::string* given_end = bound.StrOrNull(2);
  const Int leeway = bound.Given(3) == nullptr ? Int{5} : bound.IntOr(3, 5);
  if (!bound.ok()) return {};
  const std::string end = given_end == nullptr ? "..." : *given_end;
  const Int end_size = static_cast<Int>(CountCharacters(end));
  if (length < end_size || leeway < 0) {
    return in.Fail("truncate: the length is too small or the leeway negative");
  }
  if (v.AsStr() == nullptr) {
    // Other values with a length are returned as they are, if short.
    const Value size = Length(in, v, {});
    if (in.failed() || size.int_value() <= length + leeway) return v;
    return in.Fail("truncate needs a string");
  }
  const std::string& text = v.AsStr()->text;
  std::u32string c = ToUtf32(text);
  if (static_cast<Int>(c.size()) <= length + leeway) return MakeStr(text);
  c.resize(static_cast<size_t>(length - end_size));
  std::string out = FromUtf32(c);
  if (!bound.TruthOr(1, false)) {
    const size_t space = out.rfind(' ');
    if (space != std::string::npos) out.resize(space);
  }
  return MakeStr(out + end);
}

Value Unique(In& in, const Value& v, const CallArgs& args) {
  Bound bound(in, "unique", args, {"case_sensitive", "attribute"});
  if (!bound.ok()) return {};
  const AttributeGetter get(in, bound[1]);
  absl::flat_hash_map<std::string, bool> seen;
  std::vector<Value> out;
  for (Value& item : in.Items(v)) {
    Value key = get(item);
    if (!bound.TruthOr(0, false)) key = IgnoreCase(key);
    if (!in.ChargeBytes(8 + ExtentOf(key).size)) return {};
    std::string hash = HashKey(key);
    if (hash.empty()) return in.FailUnhashable(key);
    if (seen.emplace(std::move(hash), true).second) {
      out.push_back(std::move(item));
    }
  }
  return MakeIterator(std::move(out));
}

std::string UrlQuote(const std::string& text, bool for_query) {
  std::string out;
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || absl::StrContains("_.-~", c) ||
        (c == '/' && !for_query)) {
      out += c;
    } else if (c == ' ' && for_query) {
      out += '+';
    } else {
      absl::StrAppendFormat(&out, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return out;
}

Value UrlEncode(In& in, const Value& v, const CallArgs&) {
  const bool iterable = v.AsSeq() != nullptr || v.AsIterator() != nullptr ||
                        v.AsDict() != nullptr;
  if (!iterable) return MakeStr(UrlQuote(in.Str(v), false));
  std::vector<std::pair<Value, Value>> pairs;
  if (const Dict* dict = v.AsDict()) {
    pairs = dict->items;
  } else {
    for (const Value& item : in.Items(v)) {
      const std::vector<Value> pair = in.Items(item);
      if (pair.size() != 2) return in.Fail("urlencode needs pairs");
      pairs.emplace_back(pair[0], pair[1]);
    }
  }
  std::vector<std::string> parts;
  for (const auto& [key, value] : pairs) {
    parts.push_back(absl::StrCat(UrlQuote(in.Str(key), true), "=",
                                 UrlQuote(in.Str(value), true)));
  }
  return MakeStr(absl::StrJoin(parts, "&"));
}

Value WordCount(In& in, const Value& v, const CallArgs&) {
  const std::string text = in.Str(v);
  size_t words = 0;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const uint32_t c = DecodeUtf8(text, &pos);
    const bool is_word = c == '_' || IsAlpha(c) || IsNumeric(c);
    if (is_word && !in_word) ++words;
    in_word = is_word;
  }
  return words;
}

using Filter = Value (*)(In&, const Value&, const CallArgs&);

const std::map<std::string, Filter, std::less<>>& Filters() {
  static const auto& filters = *new std::map<std::string, Filter, std::less<>>{
      {"abs", Abs},
      {"attr", Attr},
      {"batch", Batch},
      {"capitalize", Mapped<Capitalize>},
      {"center", Center},
      {"count", Length},
      {"d", Default},
      {"default", Default},
      {"dictsort", DictSort},
      {"e", Escape},
      {"escape", Escape},
      {"first", EndItem<false>},
      {"float", Float},
      {"forceescape", ForceEscape},
      {"format", Format},
      {"groupby", GroupBy},
      {"indent", Indent},
      {"int", IntFilter},
      {"items", ItemsFilter},
      {"join", Join},
      {"last", EndItem<true>},
      {"length", Length},
      {"list", List},
      {"lower", Mapped<ToLower>},
      {"map", Map},
      {"max", Extreme<1>},
      {"min", Extreme<-1>},
      {"reject", Select<false, false>},
      {"rejectattr", Select<false, true>},
      {"replace", Replace},
      {"reverse", Reverse},
      {"round", Round},
      {"safe", Safe},
      {"select", Select<true, false>},
      {"selectattr", Select<true, true>},
      {"slice", Slice},
      {"sort", Sort},
      {"string", String},
      {"sum", Sum},
      {"title", Title},
      {"tojson", ToJson},
      {"trim", Trim},
      {"truncate", Truncate},
      {"unique", Unique},
      {"upper", Mapped<ToUpper>},
      {"urlencode", UrlEncode},
      {"wordcount", WordCount},
  };
  return filters;
}

}  // namespace

bool IsFilter(absl::string_view name) {
  return Filters().find(std::string(name)) != Filters().end();
}

bool IsUnsupportedFilter(absl::string_view name) {
  static constexpr absl::string_view kNames[] = {
      "filesizeformat", "pprint",   "random", "striptags",
      "urlize",         "wordwrap", "xmlattr"};
  return std::find(std::begin(kNames), std::end(kNames), name) !=
         std::end(kNames);
}

Value CallFilter(In& in, const std::string& name, const Value& operand,
                 const CallArgs& args) {
  if (in.failed()) return {};
  const auto it = Filters().find(name);
  if (it != Filters().end()) return it->second(in, operand, args);
  if (IsUnsupportedFilter(name)) {
    return in.Unsupported("the filter '", name, "'");
  }
  return in.Fail("no filter named '", name, "'");
}

// --- Bound.

Bound::Bound(Services& in, absl::string_view function, const CallArgs& args,
             std::vector<absl::string_view> parameters, size_t required)
    : in_(in),
      function_(function),
      parameters_(std::move(parameters)),
      values_(parameters_.size(), nullptr) {
  const auto fail = [&](const std::string& problem) {
    in_.Fail(function_, "() ", problem);
    ok_ = false;
    std::fill(values_.begin(), values_.end(), nullptr);
  };
  if (in_.failed()) {
    ok_ = false;
    return;
  }
  if (args.positional.size() > parameters_.size()) {
    fail(absl::StrCat("takes at most ", parameters_.size(),
                      " arguments, but got ", args.positional.size()));
    return;
  }
  for (size_t i = 0; i < args.positional.size(); ++i) {
    values_[i] = &args.positional[i];
  }
  for (const auto& [name, value] : args.keywords) {
    const auto it = std::find(parameters_.begin(), parameters_.end(),
                              absl::string_view(name));
    if (it == parameters_.end() || name.empty()) {
      fail(absl::StrCat("got an unexpected keyword argument '", name, "'"));
      return;
    }
    const Value*& slot = values_[it - parameters_.begin()];
    if (slot != nullptr) {
      fail(absl::StrCat("got multiple values for argument '", name, "'"));
      return;
    }
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) {
      fail(absl::StrCat("is missing its argument '", parameters_[i], "'"));
      return;
    }
  }
}

Int Bound::IntOr(size_t i, Int fallback) {
  const Value* value = values_[i];
  if (value == nullptr) return fallback;
  if (value->IsInt() || value->IsBool()) return value->int_value();
  in_.Fail(function_, "(): ", parameters_[i], " must be an integer, not ",
           TypeName(*value));
  ok_ = false;
  return fallback;
}

bool Bound::TruthOr(size_t i, bool fallback) const {
  return values_[i] == nullptr ? fallback : Truth(*values_[i]);
}

const std::string* Bound::StrOrNull(size_t i) {
  const Value* value = values_[i];
  if (value == nullptr || value->IsNone()) return nullptr;
  if (const auto* str = value->AsStr()) return &str->text;
  in_.Fail(function_, "(): ", parameters_[i], " must be a string, not ",
           TypeName(*value));
  ok_ = false;
  return nullptr;
}

}  // namespace sluice::jinja
