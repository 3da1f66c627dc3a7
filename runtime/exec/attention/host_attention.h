#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "runtime/exec/device_compute.h"
#include "runtime/exec/kv/kv_stager.h"
#include "runtime/exec/stage_work.h"
#include "runtime/kv/kv_arena.h"
#include "runtime/memory/device.h"
#include "runtime/memory/disk/io_completion.h"
#include "runtime/trace/trace.h"

namespace sluice {

class Backend;

// Attention on the host, for the sequences whose KV lives there (or on disk)
// while a device with memory of its own does all else: q, k and v of the rows
// come from the device, what attention gave goes back, and KV never crosses
// (FlexGen, section 4.1: "computation delegation").
//
// A thread of its own drives the host backend, so that the device projects the
// next micro-batch meanwhile. Jobs are done in the order in which they begin.
// Used by one thread; while jobs are under way, the host backend and the KV
// stager are this class's.
class HostAttention {
 public:
  struct Options {
    // All pointers must outlive this.
    Device* device = nullptr;
    Backend* on_device = nullptr;
    DeviceCompute* compute = nullptr;  // of on_device
    Backend* on_host = nullptr;
    const KvArena* kv = nullptr;  // null: nothing in host memory
    KvStager* stager = nullptr;   // null: nothing on disk
    int slots = 1;                // attention slots of both backends
    std::vector<int> cores;       // for the thread; may be empty
    Tracer* tracer = nullptr;     // may be null; gets the row "host attention"
    // Adds the seconds that Wait() waited.
    double* stall_seconds = nullptr;
  };
  explicit HostAttention(const Options& options);
  ~HostAttention();

  // Begins the attention of `work`, when the device has q, k and v of `layer`
  // (of the model; `local` of the stage) in view.attention_slot: the runs of KV
  // that are on host or disk. The slot's job before must have been
  // waited for, and `work` must stay as it is, but for other runs' segments,
  // until this one is.
  absl::Status Begin(int layer, int local, StageWork* work);
  // Until the job of the slot is done and its results are on the device.
  absl::Status Wait(int32_t slot);
  // Until no job is under way, whatever becomes of them.
  void Drain();

  // Seconds in which the host attended, waiting for KV from disk included.
  double busy_seconds() const;

 private:
  struct Job {
    int layer = 0;
    int local = 0;
    StageWork* work = nullptr;
    bool done = true;
    absl::Status status;
    IoCompletion out;  // rows on their way from the device
    IoCompletion in;   // and back
  };

  void Loop();
  absl::Status Run(Job& job);
  void CopyRows(Job& job, bool to_host);

  const Options options_;
  TraceRow* const row_;
  std::vector<std::unique_ptr<Job>> jobs_;  // by slot
  mutable Mutex mu_;
  CondVar changed_;
  std::deque<Job*> queue_ ABSL_GUARDED_BY(mu_);
  double busy_seconds_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace sluice
