#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/blocks.h"
#include "common/threads/work_marks.h"
#include "runtime/memory/disk/disk_file.h"
#include "runtime/memory/disk/io_completion.h"
#include "runtime/trace/trace.h"

namespace sluice {

// A job's label in the timeline. `name` is a string literal.
struct IoLabel {
  const char* name = nullptr;
  TraceArgs args = {};
};

class IoQueue;
class IoDriver;

// Reads and writes files while others compute.
//
// A job (one call of Read or Write) is split into requests of `request_bytes`,
// up to `queue_depth` of which are in flight at a time. Jobs of one direction
// are begun in the order of their calls; with both waiting, the directions take
// turns, request by request. A Read that is issued after the completion of a
// Write sees its data; no other order is guaranteed.
//
// One thread submits to and reaps from an io_uring; where the system does not
// allow that (old kernel, seccomp), a few threads read and write instead, with
// equal results, and a warning is logged.
//
// Thread-safe. The destructor finishes the requests in flight, ends the other
// jobs with kCancelled, and returns when all completions are done.
class IoEngine {
 public:
  enum class Backend { kAny, kUring, kThreads };
  struct Options {
    int queue_depth = 32;
    // A multiple of kDiskBlockBytes.
    size_t request_bytes = size_t{1} << 20;
    Backend backend = Backend::kAny;
    // Threads of Backend::kThreads, each with one request in flight.
    int threads = 8;
    // Cores on which the engine's threads may run; empty: any.
    std::vector<int> cores;
    // Gets the rows "disk read" and "disk write". Their spans tile the time in
    // which the disk was busy; each has the label of the job that ended it.
    Tracer* tracer = nullptr;
    // Gets a mark for each finished request; or null. Outlives the engine.
    WorkMarks* marks = nullptr;

    absl::Status Validate() const;
  };

  // kUnimplemented if Backend::kUring is asked for and cannot be had.
  static absl::StatusOr<std::unique_ptr<IoEngine>> Create(
      const Options& options);
  ~IoEngine();
  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;

  // Begins a job: one part of `done`, for which Expect() must have been called,
  // is done at its end, on a thread of the engine, with the errors of DiskFile.
  // Never waits for the disk; allocates only when more jobs wait than ever
  // before. File, memory and completion must live until then. A job of no bytes
  // or of a wrong range is done at once, on the calling thread. Of a job that
  // failed, any part may have been done.
  void Read(const DiskFile& file, uint64_t offset, std::span<std::byte> out,
            IoCompletion* done, const IoLabel& label = {});
  void Write(DiskFile& file, uint64_t offset, std::span<const std::byte> in,
             IoCompletion* done, const IoLabel& label = {});

  struct Totals {
    uint64_t bytes_read = 0;
    uint64_t bytes_written = 0;
    // Seconds with at least one request of that direction in flight.
    double read_busy_seconds = 0;
    double write_busy_seconds = 0;
  };
  Totals totals() const;

  // Backend::kUring or Backend::kThreads.
  Backend backend() const { return backend_; }

 private:
  IoEngine() = default;

  Backend backend_ = Backend::kThreads;
  std::unique_ptr<IoQueue> queue_;
  std::unique_ptr<IoDriver> driver_;
};

}  // namespace sluice
