#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "runtime/memory/disk/io_completion.h"
#include "runtime/memory/disk/io_engine.h"
#include "runtime/trace/trace.h"

namespace sluice {

// Copies memory on a thread of its own, in order: the discrete CPU backend's
// equivalent of a GPU's copy stream. One per direction.
//
// Thread-safe. The destructor finishes the running copy, ends the other jobs
// with kCancelled, and returns when all completions are done.
class CopyEngine {
 public:
  struct Options {
    // The name of the thread and of the row of the timeline: "h2d".
    std::string name = "copy";
    // Cores on which the thread may run; empty: any.
    std::vector<int> cores;
    Tracer* tracer = nullptr;
  };
  explicit CopyEngine(const Options& options);
  ~CopyEngine();
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  // Copies `from` to `to`, of the same size (kInvalidArgument) and not
  // overlapping, and then does one part of `done`, for which Expect() must have
  // been called, on the engine's thread. Allocates only when more jobs wait
  // than ever before.
  void Copy(std::span<std::byte> to, std::span<const std::byte> from,
            IoCompletion* done, const IoLabel& label = {});

  struct Totals {
    uint64_t bytes = 0;
    double busy_seconds = 0;
  };
  Totals totals() const;

 private:
  struct Job {
    std::span<std::byte> to;
    std::span<const std::byte> from;
    IoCompletion* done = nullptr;
    IoLabel label;
  };
  void Loop();

  const Options options_;
  TraceRow* const row_;
  mutable Mutex mu_;
  CondVar work_;
  // A ring that grows to twice its size when full.
  std::vector<Job> jobs_ ABSL_GUARDED_BY(mu_);
  size_t first_ ABSL_GUARDED_BY(mu_) = 0;
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Totals totals_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

}  // namespace sluice
