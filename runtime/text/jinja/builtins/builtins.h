#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/value.h"

// Jinja's filters and tests, and the methods and global functions that a
// sandboxed template can reach. All of them report errors to the interpreter
// (Fail) and charge it for their work.

namespace sluice::jinja {

class Services;

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

// Binds call arguments to parameters as Python does; fails on too many, unknown
// or doubly given ones.
class Bound {
 public:
  Bound(Services& in, absl::string_view function, const CallArgs& args,
        std::vector<absl::string_view> parameters, size_t required = 0);
  // The argument, or null if not given. All are null after a failure.
  const Value* operator[](size_t i) const { return values_[i]; }
  // The argument, or null if not given or None.
  const Value* Given(size_t i) const {
    return values_[i] == nullptr || values_[i]->IsNone() ? nullptr : values_[i];
  }
  bool ok() const { return ok_; }

  // Returns the argument, or the fallback; another type is an error.
  Int IntOr(size_t i, Int fallback);
  bool TruthOr(size_t i, bool fallback) const;
  // Returns null if the argument is not given or None.
  const std::string* StrOrNull(size_t i);

 private:
  Services& in_;
  absl::string_view function_;
  std::vector<absl::string_view> parameters_;
  std::vector<const Value*> values_;
  bool ok_ = true;
};

bool IsFilter(absl::string_view name);
// Whether Jinja has this filter, but it is not supported here.
bool IsUnsupportedFilter(absl::string_view name);
bool IsTest(absl::string_view name);

Value CallFilter(Services& in, const std::string& name, const Value& operand,
                 const CallArgs& args);
bool CallTest(Services& in, const std::string& name, const Value& operand,
              const CallArgs& args);

bool IsGlobal(absl::string_view name);
Value CallGlobal(Services& in, const std::string& name, const CallArgs& args);

// Gets a method or attribute of a value, as the sandbox's getattr. Returns
// false if the type has none of that name.
bool GetMethod(const Value& object, const std::string& name, Value& out);
// Evaluate "object.name" and "object[key]"; undefined if there is none.
Value GetAttr(Services& in, const Value& object, const std::string& name);
Value GetItem(Services& in, const Value& object, const Value& key);
Value NoAttribute(const Value& object, absl::string_view name);
Value CallMethod(Services& in, const Value& self, const std::string& name,
                 const CallArgs& args);

// Evaluate Python's "format % value" and format.format(...).
Value FormatPercent(Services& in, const std::string& format,
                    const Value& value);
Value FormatBraces(Services& in, const std::string& format,
                   const CallArgs& args);
// Evaluates json.dumps with the arguments that the tojson filter takes.
Value ToJson(Services& in, const Value& value, const CallArgs& args);

// Evaluate Python's arithmetic.
Value Arithmetic(Services& in, BinaryOp op, const Value& a, const Value& b);
Value Add(Services& in, const Value& a, const Value& b);
Value Multiply(Services& in, const Value& a, const Value& b);
// Returns -1, 0 or 1; 2 if unordered (NaN). Fails on types that have no order.
int Compare(Services& in, const Value& a, const Value& b);
bool Contains(Services& in, const Value& container, const Value& item);
bool Holds(Services& in, CompareOp op, const Value& a, const Value& b);

// Searches in linear time for any strings. Returns npos if there is no match.
size_t FindText(absl::string_view text, absl::string_view what,
                size_t from = 0);

}  // namespace sluice::jinja
