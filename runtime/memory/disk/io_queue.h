#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "common/threads/mutex.h"
#include "runtime/memory/disk/io_engine.h"

namespace sluice {

// One call of IoEngine::Read or Write.
struct IoJob {
  const DiskFile* file = nullptr;
  uint64_t offset = 0;
  std::byte* memory = nullptr;
  size_t bytes = 0;
  bool write = false;
  IoCompletion* done = nullptr;
  IoLabel label;
  size_t taken = 0;  // bytes
  int requests = 0;  // requests taken and not finished
  absl::Status status;
  IoJob* next = nullptr;  // in the list of waiting or free jobs
};

// A slice of a job: one request to the disk.
struct IoRequest {
  IoJob* job = nullptr;
  const DiskFile* file = nullptr;
  uint64_t offset = 0;
  std::byte* memory = nullptr;
  size_t bytes = 0;
  bool write = false;
};

// A part of a completion to be done once the queue's lock is released.
struct IoDone {
  IoCompletion* completion = nullptr;
  absl::Status status;

  void Tell() const {
    if (completion != nullptr) completion->Done(status);
  }
};

// The half of an IoEngine that keeps jobs: the next request, the state of jobs,
// and how busy both directions were. Drivers take requests, have them done and
// finish them. Thread-safe.
class IoQueue {
 public:
  IoQueue(size_t request_bytes, Tracer* tracer, WorkMarks* marks = nullptr);
  // REQUIRES: closed, and all requests taken are finished.
  ~IoQueue();

  // Adds a job. Returns false if it was done at once, on the calling thread.
  bool Add(bool write, const DiskFile& file, uint64_t offset, std::byte* memory,
           size_t bytes, IoCompletion* done, const IoLabel& label);

  // Takes the next request; returns false if there is none.
  bool Take(IoRequest* request);
  // Waits for the next request and takes it; returns false once closed.
  bool WaitAndTake(IoRequest* request);
  // Whether Take() would give a request.
  bool has_requests() const;

  // Ends a request that was taken. Returns the job's completion if this was its
  // last request.
  [[nodiscard]] IoDone Finish(const IoRequest& request,
                              const absl::Status& status);

  // Ends with kCancelled all requests not taken, and later jobs.
  void Close();
  bool closed() const;

  IoEngine::Totals totals() const;

 private:
  // One direction's jobs and times.
  struct Direction {
    IoJob* first = nullptr;  // the first job with requests left to take
    IoJob* last = nullptr;
    int jobs_begun = 0;  // jobs begun and not ended
    int requests_taken = 0;
    uint64_t bytes = 0;
    int64_t busy_ns = 0;
    int64_t busy_since = 0;
    int64_t span_start = 0;
    TraceRow* row = nullptr;
  };

  bool TakeLocked(IoRequest* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PopFirst(Direction* direction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  IoDone EndJob(IoJob* job, int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t request_bytes_;
  WorkMarks* const marks_;
  mutable Mutex mu_;
  CondVar work_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  Direction directions_[2] ABSL_GUARDED_BY(mu_);  // reads, writes
  int turn_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<IoJob> jobs_
      ABSL_GUARDED_BY(mu_);  // all jobs that were ever needed
  IoJob* free_ ABSL_GUARDED_BY(mu_) = nullptr;
};

// The half of an IoEngine that has requests done.
class IoDriver {
 public:
  virtual ~IoDriver() = default;
  // Must be called when a job was added to the queue.
  virtual void Wake() = 0;
  // Returns when the queue, which must be closed, is drained. Callbacks may
  // call Wake() meanwhile. Must be called before destruction.
  virtual void Stop() = 0;
};

std::unique_ptr<IoDriver> NewThreadsDriver(IoQueue* queue,
                                           const IoEngine::Options& options);

// kUnimplemented if the system has no io_uring for this process.
absl::StatusOr<std::unique_ptr<IoDriver>> NewUringDriver(
    IoQueue* queue, const IoEngine::Options& options);

}  // namespace sluice
