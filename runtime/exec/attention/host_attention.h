#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/threads/bounded_queue.h"
#include "common/threads/thread.h"
#include "runtime/exec/attention/attention.h"
#include "runtime/exec/kv/kv_stream.h"
#include "runtime/exec/stream_context.h"
#include "runtime/memory/disk/io_completion.h"
#include "runtime/trace/trace.h"

namespace sluice {

// Attention on the host, for the sequences whose KV lives there (or on disk)
// while a device with memory of its own does all else, and the attention of
// those that live on it: q, k and v of the rows come from the device, what
// attention gave goes back, and KV never crosses (FlexGen, section 4.1:
// "computation delegation").
//
// A thread of its own drives the host backend, so that the device projects the
// next micro-batch meanwhile. Jobs are done in the order in which they begin.
// While jobs are under way, the host backend and the host's KV are this
// class's.
class HostAttention : public Attention {
 public:
  // Both backends have `slots` attention slots. With `defer`, two items may
  // have begun at a time.
  HostAttention(const StreamContext& context, int slots, bool defer,
                KvStreams device_kv, KvStreams host_kv);
  ~HostAttention() override;

  int64_t max_run_pages(Tier tier) const override {
    return there_.max_run_pages(tier);
  }
  void BeginStep(StepWork* step) override;
  // The host's KV is the thread's, which reads ahead with each step and job.
  void ReadAhead() override { here_.ReadAhead(); }
  absl::StatusOr<size_t> Begin(size_t item) override;
  absl::Status Finish(size_t item) override;
  bool fixed(size_t k) const override { return here_.fixed(k); }
  void Reset() override;
  // Seconds in which the host attended include those in which it waited for KV
  // from disk, which the sweep need not have waited for.
  void AddTo(SweepStats* stats) const override;

 private:
  struct Job {
    size_t item = 0;
    IoCompletion out;  // rows on their way from the device
    IoCompletion in;   // until the job is done and its rows are back
  };

  // Whether some of the item's KV is not on the device.
  bool OnHost(size_t item) const;
  Job& JobOf(size_t item) {
    return *jobs_[step_->batch_of(item).view.attention_slot];
  }
  // Waits until no job is under way, whatever becomes of them.
  void Drain();
  void Loop();
  void CopyRows(Job& job, bool to_host);

  const StreamContext context_;
  const bool defer_;
  LocalAttention here_;  // on the device
  LocalAttention there_;
  TraceRow* const row_;
  StepWork* step_ = nullptr;
  double stall_seconds_ = 0;                // that Finish() waited
  double attended_seconds_ = 0;             // the thread's: there_'s
  std::atomic<double> busy_seconds_ = 0;    // the thread's
  std::vector<std::unique_ptr<Job>> jobs_;  // by slot
  BoundedQueue<Job*> queue_;
  Thread thread_;
};

}  // namespace sluice
