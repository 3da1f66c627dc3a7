#include "runtime/memory/copy_engine.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/memory/cpu_topology.h"

namespace sluice {
namespace {
constexpr size_t kInitialJobs = 256;
}

CopyEngine::CopyEngine(const Options& options)
    : options_(options),
      row_(AddTraceRow(options.tracer, options.name)),
      jobs_(kInitialJobs),
      thread_(options.name, [this] { Loop(); }) {}

CopyEngine::~CopyEngine() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    work_.NotifyAll();
  }
  thread_.Join();
}

void CopyEngine::Copy(std::span<std::byte> to, std::span<const std::byte> from,
                      IoCompletion* done, const IoLabel& label) {
  if (to.size() != from.size()) {
    done->Done(InvalidArgument(options_.name, ": ", from.size(),
                               " bytes to be copied into ", to.size()));
    return;
  }
  {
    MutexLock lock(&mu_);
    if (!stopping_) {
      if (waiting_ == jobs_.size()) {
        std::rotate(jobs_.begin(), jobs_.begin() + first_, jobs_.end());
        first_ = 0;
        jobs_.resize(2 * jobs_.size());
      }
      jobs_[(first_ + waiting_) % jobs_.size()] = {to, from, done, label};
      ++waiting_;
      if (waiting_ == 1) work_.NotifyOne();
      return;
    }
  }
  done->Done(absl::CancelledError(
      absl::StrCat(options_.name, ": the engine is stopping")));
}

CopyEngine::Totals CopyEngine::totals() const {
  MutexLock lock(&mu_);
  return totals_;
}

void CopyEngine::Loop() {
  BindThisThread(options_.cores);
  while (true) {
    Job job;
    bool stopping;
    {
      MutexLock lock(&mu_);
      while (waiting_ == 0 && !stopping_) work_.Wait(&mu_);
      if (waiting_ == 0) return;
      job = jobs_[first_];
      first_ = (first_ + 1) % jobs_.size();
      --waiting_;
      stopping = stopping_;
    }
    if (stopping) {
      job.done->Done(absl::CancelledError(
          absl::StrCat(options_.name, ": the engine is stopping")));
      continue;
    }
    const int64_t start = TraceNow();
    if (!job.to.empty()) {
      std::memcpy(job.to.data(), job.from.data(), job.to.size());
    }
    const int64_t end = TraceNow();
    if (row_ != nullptr) {
      row_->Add(job.label.name == nullptr ? "copy" : job.label.name, "copy",
                start, end,
                WithArg(job.label.args, "bytes",
                        static_cast<int64_t>(job.to.size())));
    }
    {
      MutexLock lock(&mu_);
      totals_.bytes += job.to.size();
      totals_.busy_seconds += static_cast<double>(end - start) * 1e-9;
    }
    job.done->Done(absl::OkStatus());
  }
}

}  // namespace sluice
