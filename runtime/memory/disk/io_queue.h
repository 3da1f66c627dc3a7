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
  int requests = 0;  // taken and not finished
  absl::Status status;
  IoJob* next = nullptr;  // waiting, or free
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

// A part of a completion to be told, once the queue's lock is free.
struct IoDone {
  IoCompletion* completion = nullptr;
  absl::Status status;

  void Tell() const {
    if (completion != nullptr) completion->Done(status);
  }
};

// The half of an IoEngine that knows jobs: which request is next, what a job
// has come to, how busy the wires were. Drivers take requests, have them done
// and finish them. Thread-safe.
class IoQueue {
 public:
  IoQueue(size_t request_bytes, Tracer* tracer, WorkMarks* marks = nullptr);
  // REQUIRES: closed, and all requests taken are finished.
  ~IoQueue();

  // Adds a job. False if instead it was done at once, on the calling thread.
  bool Add(bool write, const DiskFile& file, uint64_t offset, std::byte* memory,
           size_t bytes, IoCompletion* done, const IoLabel& label);

  // The next request; false if there is none.
  bool Take(IoRequest* request);
  // Waits for it; false once closed.
  bool WaitAndTake(IoRequest* request);
  // True if Take() would give one.
  bool has_requests() const;

  // Ends a request that was taken. To be told: the job's completion, if this
  // was its last one.
  [[nodiscard]] IoDone Finish(const IoRequest& request,
                              const absl::Status& status);

  // Ends with kCancelled what has not been taken, and what is added later.
  void Close();
  bool closed() const;

  IoEngine::Totals totals() const;

 private:
  // One direction's jobs and times.
  struct Wire {
    IoJob* first = nullptr;  // with requests left to take
    IoJob* last = nullptr;
    int jobs_begun = 0;  // and not ended
    int requests_taken = 0;
    uint64_t bytes = 0;
    int64_t busy_ns = 0;
    int64_t busy_since = 0;
    int64_t span_start = 0;
    TraceRow* row = nullptr;
  };

  bool TakeLocked(IoRequest* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PopFirst(Wire* wire) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  IoDone EndJob(IoJob* job, int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t request_bytes_;
  WorkMarks* const marks_;
  mutable Mutex mu_;
  CondVar work_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  Wire wires_[2] ABSL_GUARDED_BY(mu_);  // reads, writes
  int turn_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<IoJob> jobs_ ABSL_GUARDED_BY(mu_);  // all that ever were needed
  IoJob* free_ ABSL_GUARDED_BY(mu_) = nullptr;
};

// The other half: whatever has requests done.
class IoDriver {
 public:
  virtual ~IoDriver() = default;
  // To be called when something was added to the queue.
  virtual void Wake() = 0;
  // Returns when the queue, which must be closed, is drained. Callbacks may
  // call Wake() meanwhile. To be called before destruction.
  virtual void Stop() = 0;
};

std::unique_ptr<IoDriver> NewThreadsDriver(IoQueue* queue,
                                           const IoEngine::Options& options);

// kUnimplemented if the system has no io_uring for this process.
absl::StatusOr<std::unique_ptr<IoDriver>> NewUringDriver(
    IoQueue* queue, const IoEngine::Options& options);

}  // namespace sluice
