#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/worker_stream.h"
#include "coordinator/request_queue.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "sluice/v1/cluster.pb.h"

namespace sluice {

// Takes requests from the queue, generates them on the attached workers and
// gives their results back, whatever happens to the workers meanwhile: each
// request taken gets exactly one result, or none if the dispatcher is
// destroyed first. Thread-safe.
//
// One thread owns all state and never waits for workers, disk or text. It holds
// a window of requests: twice as many as can run, so memory does not grow with
// the job.
class Dispatcher {
 public:
  struct Options {
    ClusterOptions cluster;
    // For cluster.plan_jobs.
    PlanningOptions planning;
    RequestQueue* queue = nullptr;  // all three must outlive the dispatcher
    const Tokenizer* tokenizer = nullptr;
    MetricsRegistry* metrics = nullptr;
    int32_t vocab_size = 0;
    std::vector<int32_t> eos_tokens;
    bool refill = true;
    // Shares the KV pages by the sequences' future use, where all stages take
    // them by need; false: by each sequence's maximum, always.
    bool kv_by_need = true;
    int32_t least_window = 64;  // requests held, at least
    // With so much not stored by the queue nothing more is computed: results
    // with scores of long prompts are large, and no number of requests bounds
    // them.
    int64_t max_unwritten_bytes = 128 << 20;
    // How often time-outs, reports and metrics are looked after.
    absl::Duration tick_interval = absl::Milliseconds(50);
    absl::Duration report_interval = absl::Milliseconds(200);
  };

  static absl::StatusOr<std::unique_ptr<Dispatcher>> Create(Options options);
  // Stops. Ended requests are completed, the others are left without a result.
  virtual ~Dispatcher() = default;

  // For WorkerAttachService.
  virtual WorkerEventSink* sink() = 0;

  // There may be new requests. Never waits.
  virtual void NotifyWork() = 0;
  // Ends the job's requests with kCancelled. Never waits.
  virtual void Cancel(JobId job) = 0;
  // Looks at the clock now; for clocks turned by hand.
  virtual void Tick() = 0;

  // Fills what the dispatcher and its membership know.
  virtual v1::ClusterState cluster_state() const = 0;
  // True while a plan runs.
  virtual bool ready() const = 0;

  // Stops the thread; completes ended requests. Called by the destructor too.
  virtual void Shutdown() = 0;
};

}  // namespace sluice
