#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "runtime/kernels/cuda/device/cuda_status.h"
#include "runtime/memory/disk/io_completion.h"
#include "runtime/memory/disk/io_engine.h"
#include "runtime/trace/trace.h"

namespace sluice {

// Copies in one direction between host and device, in order: a stream, and a
// thread that waits for their ends.
//
// The caller itself gives a copy to the driver, so that the copy stream need
// not wait for a thread to wake. The thread waits for the event behind each
// copy; not a host function of the stream, which would never come once the
// device is lost. Copies from and to host memory that is not pinned go through
// the driver's own buffers, for which the caller waits.
//
// Thread-safe. The destructor waits for all copies.
class CopyStream {
 public:
  // Makes the stream on the calling thread's current device, which is
  // `health`'s. `name` names the thread and the row of the timeline: "h2d".
  // `health` and `tracer`, which may be null, must outlive the copy stream.
  static absl::StatusOr<std::unique_ptr<CopyStream>> Create(
      const std::string& name, CudaHealth* health, Tracer* tracer);
  ~CopyStream();
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  // Begins a copy; one part of `done`, which was told to Expect() it, is done
  // at its end, on the copy stream's thread, or here if it cannot begin.
  void Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
            IoCompletion* done, const IoLabel& label = {});

  // The sums over all copies between host and device.
  struct Totals {
    uint64_t bytes = 0;
    double busy_seconds = 0;  // as the device measures it
  };
  Totals totals() const;

  cudaStream_t stream() const { return stream_; }

 private:
  struct Flight {
    cudaEvent_t start = nullptr;
    cudaEvent_t end = nullptr;
    size_t bytes = 0;
    cudaMemcpyKind kind = cudaMemcpyDefault;
    IoCompletion* done = nullptr;
    IoLabel label;
  };

  CopyStream(const std::string& name, CudaHealth* health, Tracer* tracer)
      : name_(name), health_(health), row_(AddTraceRow(tracer, name)) {}
  absl::Status Begin(void* to, const void* from, Flight* flight)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(begin_mu_);
  // Gives a flight its two events, used before or new.
  absl::Status TakeEvents(Flight* flight);
  void Loop();
  // Waits for a copy's end, and counts the copy.
  absl::Status Land(const Flight& flight);

  const std::string name_;
  CudaHealth* const health_;
  TraceRow* const row_;
  cudaStream_t stream_ = nullptr;

  // It is held while a copy is given to the driver, so that all see one order.
  // The driver may make who holds it wait; the thread never takes it.
  Mutex begin_mu_;
  mutable Mutex mu_;
  CondVar changed_;
  std::deque<Flight> flights_ ABSL_GUARDED_BY(mu_);
  std::vector<cudaEvent_t> events_ ABSL_GUARDED_BY(mu_);  // not in use
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Totals totals_ ABSL_GUARDED_BY(mu_);
  int64_t last_end_ns_ = 0;  // only the thread's, for the timeline
  Thread thread_;
};

}  // namespace sluice
