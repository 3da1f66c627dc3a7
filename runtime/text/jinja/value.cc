#include "runtime/text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "runtime/text/unicode/python_text.h"

namespace sluice::jinja {
namespace {

// The type's name and the brackets of repr(), for each kind.
struct SeqTraits {
  const char* type;
  const char* open;
  const char* close;
};
const SeqTraits& TraitsOf(const Seq& seq) {
  static constexpr SeqTraits kTraits[] = {
      {"list", "[", "]"},
      {"tuple", "(", ")"},
      {"tuple", "(", ")"},  // kGroup
      {"range", "[", "]"},
      {"dict_keys", "dict_keys([", "])"},
      {"dict_values", "dict_values([", "])"},
      {"dict_items", "dict_items([", "])"}};
  return kTraits[static_cast<size_t>(seq.kind)];
}

std::string HashFloat(double number) {
  if (std::nearbyint(number) == number && std::fabs(number) < 1e37) {
    return absl::StrCat("n", IntToString(static_cast<Int>(number)));
  }
  return absl::StrCat("f", FloatRepr(number));
}

}  // namespace

const void* Value::address() const {
  return std::visit(
      [](const auto& v) -> const void* {
        using T = std::decay_t<decltype(v)>;
        if constexpr (requires { v.get(); }) {
          return v.get();
        } else if constexpr (std::is_pointer_v<T>) {
          return v;
        } else {
          return nullptr;
        }
      },
      data_);
}

Extent ExtentOf(const Value& value) {
  if (const Str* str = value.AsStr()) return {0, 1 + str->text.size()};
  if (const Seq* seq = value.AsSeq()) return seq->extent;
  if (const Dict* dict = value.AsDict()) return dict->extent;
  if (const Iterator* iterator = value.AsIterator()) return iterator->extent;
  Extent extent;
  if (const Callable* callable = value.AsCallable()) {
    extent.Add(ExtentOf(callable->self));
  }
  return extent;
}

Value MakeStr(std::string text) { return Value(std::move(text)); }

Value MakeSeq(SeqKind kind, std::vector<Value> items) {
  auto seq = std::make_shared<Seq>();
  seq->kind = kind;
  seq->items = std::move(items);
  for (const Value& item : seq->items) seq->extent.Add(ExtentOf(item));
  return Value(std::shared_ptr<const Seq>(std::move(seq)));
}

Value MakeIterator(std::vector<Value> items) {
  auto iterator = std::make_shared<Iterator>();
  iterator->items = std::move(items);
  for (const Value& item : iterator->items)
    iterator->extent.Add(ExtentOf(item));
  return Value(std::move(iterator));
}

std::string HashKey(const Value& key) {
  if (const Str* str = key.AsStr()) return absl::StrCat("s", str->text);
  if (key.IsNone()) return "0";
  if (key.IsUndefined()) return "u";
  if (key.IsInt() || key.IsBool()) {
    return absl::StrCat("n", IntToString(key.int_value()));
  }
  if (key.IsFloat()) return HashFloat(key.float_value());
  if (key.IsTuple() || key.IsKind(SeqKind::kRange)) {
    std::string hash = "t";
    for (const Value& item : key.AsSeq()->items) {
      const std::string part = HashKey(item);
      if (part.empty()) return "";
      absl::StrAppend(&hash, part.size(), ":", part);
    }
    return hash;
  }
  if (key.AsSeq() != nullptr || key.AsDict() != nullptr) return "";
  return absl::StrCat("p", reinterpret_cast<uintptr_t>(key.address()));
}

bool DictSet(Dict& dict, const Value& key, Value value) {
  std::string hash = HashKey(key);
  if (hash.empty()) return false;
  dict.extent.Add(ExtentOf(key));
  dict.extent.Add(ExtentOf(value));
  const auto [it, inserted] =
      dict.index.emplace(std::move(hash), dict.items.size());
  if (inserted) {
    dict.items.emplace_back(key, std::move(value));
  } else {
    dict.items[it->second].second = std::move(value);
  }
  return true;
}

const Value* DictGet(const Dict& dict, absl::string_view key) {
  const auto it = dict.index.find(absl::StrCat("s", key));
  return it == dict.index.end() ? nullptr : &dict.items[it->second].second;
}

const Value* DictGetValue(const Dict& dict, const Value& key) {
  const std::string hash = HashKey(key);
  if (hash.empty()) return nullptr;
  const auto it = dict.index.find(hash);
  return it == dict.index.end() ? nullptr : &dict.items[it->second].second;
}

bool Truth(const Value& value) {
  if (value.IsNone() || value.IsUndefined()) return false;
  if (value.IsFloat()) return value.float_value() != 0;
  if (value.IsNumber()) return value.int_value() != 0;
  if (const Str* str = value.AsStr()) return !str->text.empty();
  if (const Seq* seq = value.AsSeq()) return !seq->items.empty();
  if (const Dict* dict = value.AsDict()) return !dict->items.empty();
  return true;
}

bool Equal(const Value& a, const Value& b) {
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsFloat() || b.IsFloat()) return a.float_value() == b.float_value();
    return a.int_value() == b.int_value();
  }
  if (a.IsNone() || b.IsNone()) return a.IsNone() && b.IsNone();
  if (a.IsUndefined() || b.IsUndefined()) {
    return a.IsUndefined() && b.IsUndefined();
  }
  if (a.AsStr() != nullptr && b.AsStr() != nullptr) {
    return a.AsStr()->text == b.AsStr()->text;
  }
  const Seq* x = a.AsSeq();
  const Seq* y = b.AsSeq();
  if (x != nullptr && y != nullptr) {
    const auto family = [](SeqKind kind) {
      return kind == SeqKind::kGroup ? SeqKind::kTuple : kind;
    };
    return family(x->kind) == family(y->kind) && x->kind != SeqKind::kValues &&
           std::equal(x->items.begin(), x->items.end(), y->items.begin(),
                      y->items.end(), Equal);
  }
  const Dict* d = a.AsDict();
  const Dict* e = b.AsDict();
  if (d != nullptr && e != nullptr) {
    if (d->items.size() != e->items.size()) return false;
    return std::all_of(d->items.begin(), d->items.end(), [&](const auto& p) {
      const Value* other = DictGetValue(*e, p.first);
      return other != nullptr && Equal(p.second, *other);
    });
  }
  const Callable* f = a.AsCallable();
  const Callable* g = b.AsCallable();
  if (f != nullptr && g != nullptr && f->kind == g->kind) {
    return f->name == g->name && f->macro == g->macro &&
           f->self.address() == g->self.address();
  }
  return a.address() != nullptr && a.address() == b.address();
}

std::string TypeName(const Value& value) {
  if (value.IsNone()) return "NoneType";
  if (value.IsUndefined()) return "Undefined";
  if (value.IsBool()) return "bool";
  if (value.IsInt()) return "int";
  if (value.IsFloat()) return "float";
  if (value.AsStr()) return "str";
  if (value.AsDict()) return "dict";
  if (value.AsIterator()) return "generator";
  if (value.AsNamespace()) return "Namespace";
  if (value.AsLoop()) return "LoopContext";
  if (value.AsCallable()) return "function";
  return TraitsOf(*value.AsSeq()).type;
}

std::string IntToString(Int value) {
  if (value == 0) return "0";
  const bool negative = value < 0;
  __extension__ typedef unsigned __int128 UInt;
  UInt rest = negative ? -static_cast<UInt>(value) : static_cast<UInt>(value);
  std::string digits;
  while (rest != 0) {
    digits += static_cast<char>('0' + static_cast<int>(rest % 10));
    rest /= 10;
  }
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // The shortest digits that read back as the same number, laid out as
  // Python's float.__repr__ does.
  char buffer[64];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer),
                                          value, std::chars_format::scientific);
  std::string text(buffer, end);
  const size_t e = text.find('e');
  const int exponent = std::atoi(text.c_str() + e + 1);
  std::string digits = text.substr(0, e);
  std::string sign;
  if (digits[0] == '-') {
    sign = "-";
    digits.erase(0, 1);
  }
  digits.erase(std::remove(digits.begin(), digits.end(), '.'), digits.end());
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = digits.substr(0, 1);
    if (digits.size() > 1) absl::StrAppend(&mantissa, ".", digits.substr(1));
    const int magnitude = std::abs(exponent);
    return absl::StrCat(sign, mantissa, exponent < 0 ? "e-" : "e+",
                        magnitude < 10 ? "0" : "", magnitude);
  }
  if (exponent < 0) {
    return absl::StrCat(sign, "0.", std::string(-exponent - 1, '0'), digits);
  }
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) {
    return absl::StrCat(sign, digits, std::string(whole - digits.size(), '0'),
                        ".0");
  }
  return absl::StrCat(sign, digits.substr(0, whole), ".", digits.substr(whole));
}

void AppendStr(const Value& value, std::string& out) {
  if (const Str* str = value.AsStr()) {
    out += str->text;
  } else if (!value.IsUndefined()) {
    AppendRepr(value, out);
  }
}

namespace {

void AppendSeqRepr(const Seq& seq, std::string& out) {
  const SeqTraits& traits = TraitsOf(seq);
  out += traits.open;
  for (size_t i = 0; i < seq.items.size(); ++i) {
    if (i > 0) out += ", ";
    AppendRepr(seq.items[i], out);
  }
  if (traits.open[0] == '(' && seq.items.size() == 1) out += ",";
  out += traits.close;
}

// Bounds equal to the original ones, which the range does not keep.
void AppendRangeRepr(const Seq& seq, std::string& out) {
  if (seq.items.empty()) {
    out += "range(0, 0)";
    return;
  }
  const Int first = seq.items[0].int_value();
  const Int step =
      seq.items.size() > 1 ? seq.items[1].int_value() - first : Int{1};
  absl::StrAppend(
      &out, "range(", IntToString(first), ", ",
      IntToString(seq.items.back().int_value() + (step > 0 ? 1 : -1)));
  if (step != 1) absl::StrAppend(&out, ", ", IntToString(step));
  out += ")";
}

}  // namespace

void AppendRepr(const Value& value, std::string& out) {
  if (value.IsNone()) {
    out += "None";
  } else if (value.IsUndefined()) {
    out += "Undefined";
  } else if (value.IsBool()) {
    out += value.bool_value() ? "True" : "False";
  } else if (value.IsInt()) {
    out += IntToString(value.int_value());
  } else if (value.IsFloat()) {
    out += FloatRepr(value.float_value());
  } else if (const Str* str = value.AsStr()) {
    out += str->markup ? absl::StrCat("Markup(", QuotePython(str->text), ")")
                       : QuotePython(str->text);
  } else if (const Seq* seq = value.AsSeq()) {
    if (seq->kind == SeqKind::kRange) {
      AppendRangeRepr(*seq, out);
    } else {
      AppendSeqRepr(*seq, out);
    }
  } else if (const Dict* dict = value.AsDict()) {
    out += "{";
    for (size_t i = 0; i < dict->items.size(); ++i) {
      if (i > 0) out += ", ";
      AppendRepr(dict->items[i].first, out);
      out += ": ";
      AppendRepr(dict->items[i].second, out);
    }
    out += "}";
  } else if (const Callable* callable = value.AsCallable()) {
    if (callable->kind == Callable::Kind::kMacro) {
      absl::StrAppend(&out, "<Macro ", QuotePython(callable->name), ">");
    } else {
      absl::StrAppend(&out, "<function ", callable->name, ">");
    }
  } else if (const Loop* loop = value.AsLoop()) {
    absl::StrAppend(&out, "<LoopContext ",
                    std::min(loop->index + 1, loop->items.size()), "/",
                    loop->items.size(), ">");
  } else {
    absl::StrAppend(&out, "<", TypeName(value), " object>");
  }
}

}  // namespace sluice::jinja
