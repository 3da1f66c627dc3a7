#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "runtime/text/jinja/builtins/builtins.h"
#include "runtime/text/jinja/interpreter.h"
#include "runtime/text/jinja/text_ops.h"

// jinja2.tests: what can stand after "is".

namespace sluice::jinja {
namespace {

using In = Interpreter;
using Test = bool (*)(In&, const Value&, const CallArgs&);

// The one argument of tests that take one; fails and gives null without it.
const Value* Argument(In& in, const char* test, const CallArgs& args) {
  Bound bound(in, test, args, {"other"}, 1);
  return bound.ok() ? bound[0] : nullptr;
}

bool Ordered(In& in, const Value& v, const CallArgs& args, int wanted,
             bool or_equal) {
  const Value* other = Argument(in, "a comparison", args);
  if (other == nullptr) return false;
  const int order = Compare(in, v, *other);
  return order == wanted || (or_equal && order == 0);
}

bool Modulo(In& in, const Value& v, const Value& divisor, int rest) {
  const Value result = Arithmetic(in, BinaryOp::kMod, v, divisor);
  return !in.failed() && Equal(result, Value(rest));
}

bool SameAs(const Value& a, const Value& b) {
  if (a.IsNone() || b.IsNone()) return a.IsNone() && b.IsNone();
  if (a.IsBool() || b.IsBool()) {
    return a.IsBool() && b.IsBool() && a.bool_value() == b.bool_value();
  }
  if (a.IsNumber() && b.IsNumber()) {
    return a.IsInt() == b.IsInt() && Equal(a, b);
  }
  return a.address() != nullptr && a.address() == b.address();
}

// Whether there is a filter or test of this name.
bool IsNamed(In& in, const Value& v, bool (*exists)(const std::string&)) {
  if (HashKey(v).empty()) {
    in.Fail(absl::StrCat("unhashable type: '", TypeName(v), "'"));
    return false;
  }
  return v.AsStr() != nullptr && exists(v.AsStr()->text);
}

bool IsEqual(In& in, const Value& v, const CallArgs& args) {
  const Value* other = Argument(in, "equalto", args);
  return other != nullptr && Equal(v, *other);
}

bool IsUnequal(In& in, const Value& v, const CallArgs& args) {
  const Value* other = Argument(in, "ne", args);
  return other != nullptr && !Equal(v, *other);
}

bool IsGreater(In& in, const Value& v, const CallArgs& args) {
  return Ordered(in, v, args, 1, false);
}
bool IsGreaterEqual(In& in, const Value& v, const CallArgs& args) {
  return Ordered(in, v, args, 1, true);
}
bool IsLess(In& in, const Value& v, const CallArgs& args) {
  return Ordered(in, v, args, -1, false);
}
bool IsLessEqual(In& in, const Value& v, const CallArgs& args) {
  return Ordered(in, v, args, -1, true);
}

const std::map<std::string, Test>& Tests() {
  static const auto& tests = *new std::map<std::string, Test>{
      {"odd", [](In& in, const Value& v,
                 const CallArgs&) { return Modulo(in, v, Value(2), 1); }},
      {"even", [](In& in, const Value& v,
                  const CallArgs&) { return Modulo(in, v, Value(2), 0); }},
      {"divisibleby",
       [](In& in, const Value& v, const CallArgs& args) {
         const Value* divisor = Argument(in, "divisibleby", args);
         return divisor != nullptr && Modulo(in, v, *divisor, 0);
       }},
      {"defined",
       [](In&, const Value& v, const CallArgs&) { return !v.IsUndefined(); }},
      {"undefined",
       [](In&, const Value& v, const CallArgs&) { return v.IsUndefined(); }},
      {"none", [](In&, const Value& v, const CallArgs&) { return v.IsNone(); }},
      {"boolean",
       [](In&, const Value& v, const CallArgs&) { return v.IsBool(); }},
      {"true", [](In&, const Value& v,
                  const CallArgs&) { return v.IsBool() && v.bool_value(); }},
      {"false", [](In&, const Value& v,
                   const CallArgs&) { return v.IsBool() && !v.bool_value(); }},
      {"integer",
       [](In&, const Value& v, const CallArgs&) { return v.IsInt(); }},
      {"float",
       [](In&, const Value& v, const CallArgs&) { return v.IsFloat(); }},
      {"number",
       [](In&, const Value& v, const CallArgs&) { return v.IsNumber(); }},
      {"string", [](In&, const Value& v,
                    const CallArgs&) { return v.AsStr() != nullptr; }},
      {"mapping", [](In&, const Value& v,
                     const CallArgs&) { return v.AsDict() != nullptr; }},
      {"sequence",
       [](In&, const Value& v, const CallArgs&) {
         return v.AsStr() != nullptr || v.AsDict() != nullptr ||
                v.IsUndefined() || v.IsKind(SeqKind::kList) ||
                v.IsKind(SeqKind::kTuple) || v.IsKind(SeqKind::kGroup) ||
                v.IsKind(SeqKind::kRange);
       }},
      {"iterable",
       [](In&, const Value& v, const CallArgs&) {
         return v.AsStr() != nullptr || v.AsDict() != nullptr ||
                v.AsSeq() != nullptr || v.AsIterator() != nullptr ||
                v.AsLoop() != nullptr || v.IsUndefined();
       }},
      {"callable",
       [](In&, const Value& v, const CallArgs&) {
         return v.AsCallable() != nullptr || v.AsLoop() != nullptr ||
                v.IsUndefined();
       }},
      {"sameas",
       [](In& in, const Value& v, const CallArgs& args) {
         const Value* other = Argument(in, "sameas", args);
         return other != nullptr && SameAs(v, *other);
       }},
      {"escaped",
       [](In&, const Value& v, const CallArgs&) {
         return v.AsStr() != nullptr && v.AsStr()->markup;
       }},
      {"in",
       [](In& in, const Value& v, const CallArgs& args) {
         const Value* container = Argument(in, "in", args);
         return container != nullptr && Contains(in, *container, v);
       }},
      {"lower", [](In& in, const Value& v,
                   const CallArgs&) { return IsLowerText(in.Str(v)); }},
      {"upper", [](In& in, const Value& v,
                   const CallArgs&) { return IsUpperText(in.Str(v)); }},
      {"filter",
       [](In& in, const Value& v, const CallArgs&) {
         return IsNamed(in, v, [](const std::string& name) {
           return IsFilter(name) || IsUnsupportedFilter(name);
         });
       }},
      {"test",
       [](In& in, const Value& v, const CallArgs&) {
         return IsNamed(in, v,
                        [](const std::string& name) { return IsTest(name); });
       }},
      {"eq", IsEqual},
      {"equalto", IsEqual},
      {"==", IsEqual},
      {"ne", IsUnequal},
      {"!=", IsUnequal},
      {"gt", IsGreater},
      {"greaterthan", IsGreater},
      {">", IsGreater},
      {"ge", IsGreaterEqual},
      {">=", IsGreaterEqual},
      {"lt", IsLess},
      {"lessthan", IsLess},
      {"<", IsLess},
      {"le", IsLessEqual},
      {"<=", IsLessEqual},
  };
  return tests;
}

}  // namespace

bool IsTest(absl::string_view name) {
  return Tests().count(std::string(name)) != 0;
}

bool CallTest(In& in, const std::string& name, const Value& operand,
              const CallArgs& args) {
  if (in.failed()) return false;
  const auto it = Tests().find(name);
  if (it != Tests().end()) return it->second(in, operand, args);
  in.Fail(absl::StrCat("no test named '", name, "'"));
  return false;
}

}  // namespace sluice::jinja
