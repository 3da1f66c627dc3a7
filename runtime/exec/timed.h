#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/memory/disk/io_completion.h"
#include "runtime/trace/trace.h"

namespace sluice {

// Adds the time of a scope to a total, and shows it in the timeline.
class Timed {
 public:
  Timed(double* seconds, TraceRow* row, const char* name,
        const TraceArgs& args = {})
      : seconds_(seconds), row_(row), name_(name), args_(args) {}
  ~Timed() {
    const int64_t end = TraceNow();
    *seconds_ += static_cast<double>(end - start_) * 1e-9;
    if (row_ != nullptr) row_->Add(name_, "compute", start_, end, args_);
  }

 private:
  double* const seconds_;
  TraceRow* const row_;
  const char* const name_;
  const TraceArgs args_;
  const int64_t start_ = TraceNow();
};

// Waits, and adds the time to a total, which may be null.
inline absl::Status WaitTimed(IoCompletion& done, double* seconds) {
  if (done.ready()) return done.status();
  const int64_t start = TraceNow();
  const absl::Status status = done.Wait();
  if (seconds != nullptr) {
    *seconds += static_cast<double>(TraceNow() - start) * 1e-9;
  }
  return status;
}

}  // namespace sluice
