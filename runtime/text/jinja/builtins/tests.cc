#include <map>

#include "runtime/text/jinja/builtins/builtins.h"
#include "runtime/text/jinja/services.h"
#include "runtime/text/jinja/text_ops.h"

// The tests of jinja2.tests, which may follow "is".

namespace sluice::jinja {
namespace {

using In = Services;
using Test = bool (*)(In&, const Value&, const CallArgs&);

// Returns a test's one argument; fails and gives null without it.
const Value* Argument(In& in, const char* test, const CallArgs& args) {
  Bound bound(in, test, args, {"other"}, 1);
  return bound.ok() ? bound[0] : nullptr;
}

bool Modulo(In& in, const Value& v, const Value& divisor, int rest) {
  const Value result = Arithmetic(in, BinaryOp::kMod, v, divisor);
  return !in.failed() && Equal(result, Value(rest));
}

template <int kRest>
bool Parity(In& in, const Value& v, const CallArgs&) {
  return Modulo(in, v, Value(2), kRest);
}

bool DivisibleBy(In& in, const Value& v, const CallArgs& args) {
  const Value* divisor = Argument(in, "divisibleby", args);
  return divisor != nullptr && Modulo(in, v, *divisor, 0);
}

template <CompareOp kOp>
bool Compares(In& in, const Value& v, const CallArgs& args) {
  const Value* other = Argument(in,
                                kOp == CompareOp::kEq   ? "equalto"
                                : kOp == CompareOp::kNe ? "ne"
                                : kOp == CompareOp::kIn ? "in"
                                                        : "a comparison",
                                args);
  return other != nullptr && Holds(in, kOp, v, *other);
}

// Tests a property of the value itself.
template <bool (Value::*kIs)() const>
bool Has(In&, const Value& v, const CallArgs&) {
  return (v.*kIs)();
}

template <bool (*kIs)(absl::string_view)>
bool TextIs(In& in, const Value& v, const CallArgs&) {
  return kIs(in.Str(v));
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

bool SameAsArgument(In& in, const Value& v, const CallArgs& args) {
  const Value* other = Argument(in, "sameas", args);
  return other != nullptr && SameAs(v, *other);
}

bool IsKnownFilter(absl::string_view name) {
  return IsFilter(name) || IsUnsupportedFilter(name);
}

// Whether there is a filter or test of this name.
template <bool (*kExists)(absl::string_view)>
bool Names(In& in, const Value& v, const CallArgs&) {
  if (HashKey(v).empty()) in.FailUnhashable(v);
  return v.AsStr() != nullptr && kExists(v.AsStr()->text);
}

const std::map<std::string, Test>& Tests() {
  static const auto& tests = *new std::map<std::string, Test>{
      {"odd", Parity<1>},
      {"even", Parity<0>},
      {"divisibleby", DivisibleBy},
      {"defined",
       [](In&, const Value& v, const CallArgs&) { return !v.IsUndefined(); }},
      {"undefined", Has<&Value::IsUndefined>},
      {"none", Has<&Value::IsNone>},
      {"boolean", Has<&Value::IsBool>},
      {"true", [](In&, const Value& v,
                  const CallArgs&) { return v.IsBool() && v.bool_value(); }},
      {"false", [](In&, const Value& v,
                   const CallArgs&) { return v.IsBool() && !v.bool_value(); }},
      {"integer", Has<&Value::IsInt>},
      {"float", Has<&Value::IsFloat>},
      {"number", Has<&Value::IsNumber>},
      {"string", [](In&, const Value& v,
                    const CallArgs&) { return v.AsStr() != nullptr; }},
      {"mapping", [](In&, const Value& v,
                     const CallArgs&) { return v.AsDict() != nullptr; }},
      {"sequence",
       [](In&, const Value& v, const CallArgs&) {
         return v.AsStr() != nullptr || v.AsDict() != nullptr ||
                v.IsUndefined() || (v.AsSeq() != nullptr && !v.IsView());
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
      {"sameas", SameAsArgument},
      {"escaped",
       [](In&, const Value& v, const CallArgs&) {
         return v.AsStr() != nullptr && v.AsStr()->markup;
       }},
      {"in", Compares<CompareOp::kIn>},
      {"lower", TextIs<IsLowerText>},
      {"upper", TextIs<IsUpperText>},
      {"filter", Names<IsKnownFilter>},
      {"test", Names<IsTest>},
      {"eq", Compares<CompareOp::kEq>},
      {"equalto", Compares<CompareOp::kEq>},
      {"==", Compares<CompareOp::kEq>},
      {"ne", Compares<CompareOp::kNe>},
      {"!=", Compares<CompareOp::kNe>},
      {"gt", Compares<CompareOp::kGt>},
      {"greaterthan", Compares<CompareOp::kGt>},
      {">", Compares<CompareOp::kGt>},
      {"ge", Compares<CompareOp::kGe>},
      {">=", Compares<CompareOp::kGe>},
      {"lt", Compares<CompareOp::kLt>},
      {"lessthan", Compares<CompareOp::kLt>},
      {"<", Compares<CompareOp::kLt>},
      {"le", Compares<CompareOp::kLe>},
      {"<=", Compares<CompareOp::kLe>},
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
  in.Fail("no test named '", name, "'");
  return false;
}

}  // namespace sluice::jinja
