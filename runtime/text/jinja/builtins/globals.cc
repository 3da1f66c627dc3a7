#include <algorithm>
#include <ctime>

#include "runtime/text/jinja/builtins/builtins.h"
#include "runtime/text/jinja/services.h"

// Global functions: Jinja's own and those that transformers adds.

namespace sluice::jinja {
namespace {

using In = Services;

constexpr Int kMaxRange = 100000;  // jinja2.sandbox.MAX_RANGE

Value Range(In& in, const CallArgs& args) {
  const auto& given = args.positional;
  if (!args.keywords.empty() || given.empty() || given.size() > 3) {
    return in.Fail("range() takes one to three arguments");
  }
  for (const Value& value : given) {
    if (!value.IsInt() && !value.IsBool()) {
      return in.Fail("'", TypeName(value),
                     "' object cannot be interpreted as an "
                     "integer");
    }
  }
  const Int start = given.size() == 1 ? Int{0} : given[0].int_value();
  const Int stop = given[given.size() == 1 ? 0 : 1].int_value();
  const Int step = given.size() == 3 ? given[2].int_value() : Int{1};
  if (step == 0) return in.Fail("range() arg 3 must not be zero");
  constexpr Int kHuge = Int{1} << 100;
  for (const Int bound : {start, stop, step}) {
    if (bound > kHuge || bound < -kHuge) return in.Fail("range is too big");
  }
  const Int span = step > 0 ? stop - start : start - stop;
  const Int stride = step > 0 ? step : -step;
  const Int count = span <= 0 ? Int{0} : (span - 1) / stride + 1;
  if (count > kMaxRange) {
    return in.Fail(
        "Range too big. The sandbox blocks ranges larger than MAX_RANGE "
        "(100000).");
  }
  in.Charge(4 * static_cast<uint64_t>(count));
  std::vector<Value> items;
  for (Int i = 0; i < count; ++i) items.push_back(Value(start + i * step));
  return MakeSeq(SeqKind::kRange, std::move(items));
}

// Makes a dict of the arguments of dict() or namespace().
std::shared_ptr<Dict> MakeDict(In& in, const char* function,
                               const CallArgs& args) {
  auto dict = std::make_shared<Dict>();
  const auto set = [&](const Value& key, const Value& value) {
    in.ChargeBytes(8 + ExtentOf(key).size);
    if (!DictSet(*dict, key, value)) in.FailUnhashable(key);
  };
  if (args.positional.size() > 1) {
    in.Fail(function, "() takes at most one positional argument");
    return dict;
  }
  if (!args.positional.empty()) {
    if (const Dict* source = args.positional[0].AsDict()) {
      for (const auto& [key, value] : source->items) set(key, value);
    } else {
      for (const Value& item : in.Items(args.positional[0])) {
        const std::vector<Value> pair = in.Items(item);
        if (in.failed()) return dict;
        if (pair.size() != 2) {
          in.Fail(function, "() needs pairs");
          return dict;
        }
        set(pair[0], pair[1]);
      }
    }
  }
  for (const auto& [name, value] : args.keywords) set(MakeStr(name), value);
  return dict;
}

Value MakeNamespace(In& in, const CallArgs& args) {
  const std::shared_ptr<Dict> dict = MakeDict(in, "namespace", args);
  Namespace* ns = in.NewNamespace();
  for (const auto& [key, value] : dict->items) {
    const auto* name = key.AsStr();
    if (name == nullptr) continue;  // no syntax can reach it
    if (!name->text.empty() && name->text[0] == '_') {
      return in.Fail(
          "Chat templates cannot store underscore-prefixed attributes on a "
          "namespace, but got '",
          name->text, "'. Please rename the attribute.");
    }
    ns->Set(name->text, value);
  }
  return Value(ns);
}

// Evaluates datetime.strftime of a time without zone, in the C locale.
Value StrftimeNow(In& in, const CallArgs& args) {
  Bound bound(in, "strftime_now", args, {"format"}, 1);
  const std::string* given = bound.StrOrNull(0);
  if (!bound.ok()) return {};
  if (given == nullptr) return in.Fail("strftime_now() needs a string");
  if (given->size() > 1000) return in.Fail("the time format is too long");
  // Python handles these directives itself, before C's strftime.
  std::string format;
  for (size_t i = 0; i < given->size(); ++i) {
    const char next = i + 1 < given->size() ? (*given)[i + 1] : '\0';
    if ((*given)[i] != '%' || next == '\0') {
      format += (*given)[i];
    } else {
      ++i;
      if (next == 'f') {
        format += "000000";
      } else if (next != 'z' && next != 'Z') {
        format += '%';
        format += next;
      }
    }
  }
  const absl::CivilSecond now = in.now();
  std::tm time = {};
  time.tm_year = static_cast<int>(now.year() - 1900);
  time.tm_mon = now.month() - 1;
  time.tm_mday = now.day();
  time.tm_hour = now.hour();
  time.tm_min = now.minute();
  time.tm_sec = now.second();
  time.tm_wday = (static_cast<int>(absl::GetWeekday(now)) + 1) % 7;
  time.tm_yday = absl::GetYearDay(now) - 1;
  time.tm_isdst = -1;
  // The mark tells an empty result from one that did not fit.
  format += '|';
  std::string out(64 + 64 * format.size(), '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &time));
  if (out.empty()) return in.Fail("the time format gives too long a text");
  out.pop_back();
  return MakeStr(std::move(out));
}

}  // namespace

bool IsGlobal(absl::string_view name) {
  static constexpr absl::string_view kNames[] = {
      "range",        "dict",   "namespace", "raise_exception",
      "strftime_now", "cycler", "joiner",    "lipsum"};
  return std::find(std::begin(kNames), std::end(kNames), name) !=
         std::end(kNames);
}

Value CallGlobal(Services& in, const std::string& name, const CallArgs& args) {
  if (in.failed()) return {};
  if (name == "range") return Range(in, args);
  if (name == "dict") {
    return Value(std::shared_ptr<const Dict>(MakeDict(in, "dict", args)));
  }
  if (name == "namespace") return MakeNamespace(in, args);
  if (name == "strftime_now") return StrftimeNow(in, args);
  if (name == "raise_exception") {
    Bound bound(in, "raise_exception", args, {"message"}, 1);
    return bound.ok() ? in.Raise(in.Str(*bound[0])) : Value();
  }
  return in.Unsupported(name, "()");
}

}  // namespace sluice::jinja
