#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/civil_time.h"
#include "common/status_macros.h"
#include "runtime/text/jinja/value.h"

namespace sluice::jinja {

// Bounds of one rendering. No template can run for long or take much memory.
struct Limits {
  uint64_t work = 20'000'000;           // steps, and bytes and items handled
  uint64_t bytes = uint64_t{64} << 20;  // of the output, and of any value
  int value_depth = 100;
  int call_depth = 600;  // of statements and expressions being evaluated
};

// The services of a rendering for built-in functions: errors and the accounting
// of work. The first error sticks: from then on evaluation gives undefined
// values and soon ends, so that callers need not check failed() at once.
// Confined to a thread.
class Services {
 public:
  Services(absl::CivilSecond now, const Limits& limits)
      : now_(now), limits_(limits) {}
  Services(const Services&) = delete;
  Services& operator=(const Services&) = delete;

  bool failed() const { return !status_.ok(); }
  // Fail with kInvalidArgument (kUnimplemented) and the line, of a message in
  // parts as for absl::StrCat; return an undefined value.
  Value Fail(const auto&... message) {
    if (status_.ok()) {
      status_ = InvalidArgument("line ", line_, ": ", message...);
    }
    return Value::MakeUndefined("");
  }
  Value Unsupported(const auto&... what) {
    if (status_.ok()) {
      status_ =
          Unimplemented("line ", line_, ": ", what..., " is not supported");
    }
    return Value::MakeUndefined("");
  }
  // Returns whether `value` is undefined; if so, fails with its message.
  bool FailIfUndefined(const Value& value);
  // Fails for a value that can't be a key of a dict.
  Value FailUnhashable(const Value& key);
  // Fails with the template's own error: its message alone.
  Value Raise(const std::string& message);
  // Accounts for work; returns false, and fails, when there was too much.
  bool Charge(uint64_t units) {
    if (failed()) return false;
    work_ += units;
    return (work_ <= limits_.work && units <= limits_.work) || TooMuchWork();
  }
  bool ChargeBytes(uint64_t bytes) { return Charge(1 + bytes / 8); }
  // Charges for a string before it is made; also fails if it is too large.
  bool ChargeString(uint64_t bytes);
  absl::CivilSecond now() const { return now_; }

  // Returns str(value), charged.
  std::string Str(const Value& value);
  // Returns all items of an iterable; takes them from a generator. Fails if it
  // is no iterable.
  std::vector<Value> Items(const Value& iterable);
  Namespace* NewNamespace();
  // Returns false, and fails, if `value` is too large or nested too deeply.
  bool CheckExtent(const Value& value);

 protected:
  ~Services() = default;
  absl::Status Exhausted(absl::string_view what) const;

  const absl::CivilSecond now_;
  const Limits limits_;
  absl::Status status_;
  int line_ = 1;  // of the template, for messages

 private:
  bool TooMuchWork();

  uint64_t work_ = 0;
  std::deque<Namespace> namespaces_;
};

}  // namespace sluice::jinja
