#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/threads/mutex.h"

namespace sluice {

// Nanoseconds on the monotonic clock: the time base of every span.
inline int64_t TraceNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A number shown with a span ("layer": 3). `key` is a string literal; an
// argument without a key is none.
struct TraceArg {
  const char* key = nullptr;
  int64_t value = 0;
};
inline constexpr size_t kTraceArgs = 4;
using TraceArgs = std::array<TraceArg, kTraceArgs>;

// `args` and the number `value` under `key`, if there is room for it.
inline TraceArgs WithArg(TraceArgs args, const char* key, int64_t value) {
  for (TraceArg& arg : args) {
    if (arg.key != nullptr) continue;
    arg = {key, value};
    break;
  }
  return args;
}

// One line of the timeline: a thread or a wire. Its spans must nest: of two of
// them, either one lies within the other or they do not overlap.
//
// One thread at a time may add; the tracer may write the timeline meanwhile.
class TraceRow {
 public:
  TraceRow(std::string name, size_t capacity);

  // `name` and `category` are string literals (kept by address). Neither locks
  // nor allocates; past the row's capacity a span is only counted.
  void Add(const char* name, const char* category, int64_t start_ns,
           int64_t end_ns, const TraceArgs& args = {}) {
    const size_t n = size_.load(std::memory_order_relaxed);
    if (n == capacity_) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    spans_[n] = {name, category, start_ns, end_ns, args};
    size_.store(n + 1, std::memory_order_release);
  }

  const std::string& name() const { return name_; }
  size_t size() const { return size_.load(std::memory_order_acquire); }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  friend class Tracer;
  struct Span {
    const char* name;
    const char* category;
    int64_t start_ns;
    int64_t end_ns;
    TraceArgs args;
  };

  const std::string name_;
  const size_t capacity_;
  // Spans are left uninitialized: the system gives pages as spans fill them.
  const std::unique_ptr<Span[]> spans_;
  std::atomic<size_t> size_{0};
  std::atomic<uint64_t> dropped_{0};
};

// A timeline of rows, written as a Chrome trace that Perfetto opens
// ("Trace Event Format", complete events, microseconds).
//
// Whatever records takes a `Tracer*` that may be null, and then costs a branch.
// Must outlive all who record. Thread-safe.
class Tracer {
 public:
  struct Options {
    std::string process_name = "sluice";
    // Spans that each row keeps, about 100 bytes each.
    size_t spans_per_row = size_t{1} << 17;
  };
  explicit Tracer(Options options);

  // A new row, shown in order of creation. Owned by the tracer.
  TraceRow* AddRow(std::string name) ABSL_LOCKS_EXCLUDED(mu_);

  // Writes what has been recorded up to now, in one step (a file of that name
  // is replaced only by a whole one). Errors name the file.
  absl::Status WriteJson(const std::string& path) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Spans that found their row full.
  uint64_t dropped() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void AppendSpan(std::string* out, size_t row,
                  const TraceRow::Span& span) const;

  const Options options_;
  const int64_t start_ns_;
  const int64_t start_unix_us_;
  mutable Mutex mu_;
  std::vector<std::unique_ptr<TraceRow>> rows_ ABSL_GUARDED_BY(mu_);
};

// `tracer->AddRow(name)`, or null without a tracer.
inline TraceRow* AddTraceRow(Tracer* tracer, std::string name) {
  return tracer == nullptr ? nullptr : tracer->AddRow(std::move(name));
}

// The span of a scope; with a null row, nothing.
class TraceScope {
 public:
  TraceScope(TraceRow* row, const char* name, const char* category,
             const TraceArgs& args = {})
      : row_(row) {
    if (row_ == nullptr) return;
    name_ = name;
    category_ = category;
    args_ = args;
    start_ns_ = TraceNow();
  }
  ~TraceScope() {
    if (row_ != nullptr) {
      row_->Add(name_, category_, start_ns_, TraceNow(), args_);
    }
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  TraceRow* const row_;
  const char* name_ = nullptr;
  const char* category_ = nullptr;
  TraceArgs args_;
  int64_t start_ns_ = 0;
};

}  // namespace sluice
