#include <string.h>

#include <algorithm>
#include <cmath>

#include "runtime/text/jinja/builtins/builtins.h"
#include "runtime/text/jinja/services.h"

// Python's operators on the values of templates.

namespace sluice::jinja {
namespace {

constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

Value TypeError(Services& in, BinaryOp op, const Value& a, const Value& b) {
  if (in.FailIfUndefined(a) || in.FailIfUndefined(b)) return {};
  return in.Fail("unsupported operand types for ",
                 kSymbols[static_cast<size_t>(op)], ": '", TypeName(a),
                 "' and '", TypeName(b), "'");
}

Value TooLarge(Services& in) { return in.Fail("an integer is too large"); }

Value PowerInt(Services& in, Int base, Int exponent) {
  Int result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      return TooLarge(in);
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) {
      return TooLarge(in);
    }
  }
  return result;
}

Value IntArithmetic(Services& in, BinaryOp op, Int a, Int b) {
  Int result = 0;
  const auto unless = [&](bool overflow) {
    return overflow ? TooLarge(in) : Value(result);
  };
  switch (op) {
    case BinaryOp::kAdd:
      return unless(__builtin_add_overflow(a, b, &result));
    case BinaryOp::kSub:
      return unless(__builtin_sub_overflow(a, b, &result));
    case BinaryOp::kMul:
      return unless(__builtin_mul_overflow(a, b, &result));
    case BinaryOp::kDiv:
      if (b == 0) return in.Fail("division by zero");
      return static_cast<double>(a) / static_cast<double>(b);
    case BinaryOp::kFloorDiv:
    case BinaryOp::kMod: {
      if (b == 0) return in.Fail("integer division or modulo by zero");
      if (b == -1) {  // the quotient of the smallest integer overflows
        if (op == BinaryOp::kMod) return Value(0);
        return unless(__builtin_sub_overflow(Int{0}, a, &result));
      }
      Int quotient = a / b;
      Int rest = a % b;
      if (rest != 0 && (rest < 0) != (b < 0)) {
        rest += b;
        --quotient;
      }
      return op == BinaryOp::kMod ? rest : quotient;
    }
    case BinaryOp::kPow:
      break;
  }
  if (b < 0) {
    if (a == 0) return in.Fail("0.0 cannot be raised to a negative power");
    return std::pow(static_cast<double>(a), static_cast<double>(b));
  }
  return PowerInt(in, a, b);
}

Value FloatArithmetic(Services& in, BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return a + b;
    case BinaryOp::kSub:
      return a - b;
    case BinaryOp::kMul:
      return a * b;
    case BinaryOp::kDiv:
      if (b == 0) return in.Fail("float division by zero");
      return a / b;
    case BinaryOp::kFloorDiv:
    case BinaryOp::kMod: {
      // The rest follows CPython's float_divmod.
      if (b == 0) return in.Fail("float floor division by zero");
      double rest = std::fmod(a, b);
      double quotient = (a - rest) / b;
      if (rest != 0) {
        if ((b < 0) != (rest < 0)) {
          rest += b;
          quotient -= 1;
        }
      } else {
        rest = std::copysign(0.0, b);
      }
      if (op == BinaryOp::kMod) return rest;
      if (quotient == 0) return std::copysign(0.0, a / b);
      double floored = std::floor(quotient);
      if (quotient - floored > 0.5) floored += 1;
      return floored;
    }
    case BinaryOp::kPow:
      break;
  }
  if (a == 0 && b < 0) {
    return in.Fail("0.0 cannot be raised to a negative power");
  }
  if (a < 0 && std::floor(b) != b) {
    return in.Unsupported("a complex number");
  }
  const double result = std::pow(a, b);
  if (std::isinf(result) && !std::isinf(a) && !std::isinf(b)) {
    return in.Fail("numerical result out of range");
  }
  return result;
}

// Repeats strings and sequences.
Value Repeat(Services& in, const Value& what, Int times) {
  if (times < 0) times = 0;
  if (const auto* str = what.AsStr()) {
    if (str->text.empty()) return what;
    const Int bytes =
        static_cast<Int>(str->text.size()) * std::min(times, Int{1} << 40);
    if (!in.ChargeString(static_cast<uint64_t>(bytes))) return {};
    std::string text;
    for (Int i = 0; i < times; ++i) text += str->text;
    return MakeStr(std::move(text));
  }
  const Seq& seq = *what.AsSeq();
  if (seq.items.empty()) times = 0;
  const Int count =
      static_cast<Int>(seq.items.size()) * std::min(times, Int{1} << 40);
  if (!in.Charge(4 * static_cast<uint64_t>(count))) return {};
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(count));
  for (Int i = 0; i < times; ++i) {
    items.insert(items.end(), seq.items.begin(), seq.items.end());
  }
  return MakeSeq(seq.kind, std::move(items));
}

bool IsRepeatable(const Value& value) {
  return value.AsStr() != nullptr || value.IsKind(SeqKind::kList) ||
         value.IsKind(SeqKind::kTuple);
}

}  // namespace

Value Add(Services& in, const Value& a, const Value& b) {
  return Arithmetic(in, BinaryOp::kAdd, a, b);
}

Value Multiply(Services& in, const Value& a, const Value& b) {
  return Arithmetic(in, BinaryOp::kMul, a, b);
}

Value Arithmetic(Services& in, BinaryOp op, const Value& a, const Value& b) {
  if (in.failed()) return {};
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsFloat() || b.IsFloat()) {
      return FloatArithmetic(in, op, a.float_value(), b.float_value());
    }
    return IntArithmetic(in, op, a.int_value(), b.int_value());
  }
  if (op == BinaryOp::kMod && a.AsStr() != nullptr) {
    return FormatPercent(in, a.AsStr()->text, b);
  }
  if (op == BinaryOp::kAdd) {
    if (a.AsStr() != nullptr && b.AsStr() != nullptr) {
      if (!in.ChargeString(a.AsStr()->text.size() + b.AsStr()->text.size())) {
        return {};
      }
      if (a.AsStr()->markup != b.AsStr()->markup) {
        // Strings that are not marked safe are escaped first.
        const Value x = CallFilter(in, "escape", a, {});
        const Value y = CallFilter(in, "escape", b, {});
        if (in.failed()) return {};
        return Value(std::make_shared<const Str>(
            Str{x.AsStr()->text + y.AsStr()->text, true}));
      }
      return Value(std::make_shared<const Str>(
          Str{a.AsStr()->text + b.AsStr()->text, a.AsStr()->markup}));
    }
    for (const SeqKind kind : {SeqKind::kList, SeqKind::kTuple}) {
      if (!a.IsKind(kind) || !b.IsKind(kind)) continue;
      std::vector<Value> items = in.Items(a);
      for (Value& item : in.Items(b)) items.push_back(std::move(item));
      return MakeSeq(kind, std::move(items));
    }
  }
  if (op == BinaryOp::kMul) {
    if (IsRepeatable(a) && (b.IsInt() || b.IsBool())) {
      return Repeat(in, a, b.int_value());
    }
    if (IsRepeatable(b) && (a.IsInt() || a.IsBool())) {
      return Repeat(in, b, a.int_value());
    }
  }
  return TypeError(in, op, a, b);
}

int Compare(Services& in, const Value& a, const Value& b) {
  if (in.failed()) return 2;
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsFloat() || b.IsFloat()) {
      const double x = a.float_value(), y = b.float_value();
      return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
    }
    const Int x = a.int_value(), y = b.int_value();
    return x < y ? -1 : x > y ? 1 : 0;
  }
  if (a.AsStr() != nullptr && b.AsStr() != nullptr) {
    // The order of UTF-8 is that of code points.
    const int order = a.AsStr()->text.compare(b.AsStr()->text);
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  const Seq* x = a.AsSeq();
  const Seq* y = b.AsSeq();
  if ((a.IsKind(SeqKind::kList) && b.IsKind(SeqKind::kList)) ||
      (a.IsTuple() && b.IsTuple())) {
    const size_t common = std::min(x->items.size(), y->items.size());
    for (size_t i = 0; i < common; ++i) {
      if (Equal(x->items[i], y->items[i])) continue;
      return Compare(in, x->items[i], y->items[i]);
    }
    if (x->items.size() == y->items.size()) return 0;
    return x->items.size() < y->items.size() ? -1 : 1;
  }
  if (!in.FailIfUndefined(a) && !in.FailIfUndefined(b)) {
    in.Fail("'", TypeName(a), "' and '", TypeName(b), "' have no order");
  }
  return 2;
}

bool Holds(Services& in, CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEq:
      return Equal(a, b);
    case CompareOp::kNe:
      return !Equal(a, b);
    case CompareOp::kIn:
      return Contains(in, b, a);
    case CompareOp::kNotIn:
      return !Contains(in, b, a);
    default:
      break;
  }
  const int order = Compare(in, a, b);
  const bool less = op == CompareOp::kLt || op == CompareOp::kLe;
  const bool or_equal = op == CompareOp::kLe || op == CompareOp::kGe;
  return order == (less ? -1 : 1) || (or_equal && order == 0);
}

bool Contains(Services& in, const Value& container, const Value& item) {
  if (in.failed()) return false;
  if (const auto* str = container.AsStr()) {
    const auto* what = item.AsStr();
    if (what == nullptr) {
      in.Fail(
          "'in <string>' requires string as left operand, "
          "not ",
          TypeName(item));
      return false;
    }
    if (!in.ChargeBytes(str->text.size())) return false;
    return FindText(str->text, what->text) != absl::string_view::npos;
  }
  const Dict* dict = container.AsDict();
  if ((dict != nullptr || container.IsKind(SeqKind::kKeys)) &&
      HashKey(item).empty()) {
    in.FailUnhashable(item);
    return false;
  }
  if (dict != nullptr) return DictGetValue(*dict, item) != nullptr;
  const auto is_item = [&](const Value& candidate) {
    return in.ChargeBytes(
               std::min(ExtentOf(candidate).size, ExtentOf(item).size)) &&
           Equal(candidate, item);
  };
  if (const Seq* seq = container.AsSeq()) {
    for (const Value& candidate : seq->items) {
      if (is_item(candidate)) return true;
      if (in.failed()) return false;
    }
    return false;
  }
  if (Iterator* iterator = container.AsIterator()) {
    // A search takes all items up to the match from a generator.
    while (iterator->next < iterator->items.size() && !in.failed()) {
      if (is_item(iterator->items[iterator->next++])) return true;
    }
    return false;
  }
  if (!container.IsUndefined()) {
    in.Fail("argument of type '", TypeName(container), "' is not iterable");
  }
  return false;
}

size_t FindText(absl::string_view text, absl::string_view what, size_t from) {
  if (from > text.size()) return absl::string_view::npos;
  if (what.empty()) return from;
  const void* found =
      memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return found == nullptr ? absl::string_view::npos
                          : static_cast<size_t>(
                                static_cast<const char*>(found) - text.data());
}

}  // namespace sluice::jinja
