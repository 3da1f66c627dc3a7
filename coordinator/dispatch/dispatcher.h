#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/event_rate.h"
#include "common/metrics/metrics.h"
#include "common/threads/executor.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/worker_stream.h"
#include "coordinator/dispatch/block_driver.h"
#include "coordinator/dispatch/busy_time.h"
#include "coordinator/dispatch/dispatch_metrics.h"
#include "coordinator/dispatch/inbox.h"
#include "coordinator/dispatch/trace_log.h"
#include "coordinator/planning/job_planner.h"
#include "coordinator/request_queue.h"
#include "sluice/v1/cluster.pb.h"

namespace sluice {

// Takes requests from the queue, generates them on the attached workers and
// returns their results, even if workers fail meanwhile: each request taken
// gets exactly one result, or none if the dispatcher is destroyed first.
// Thread-safe.
//
// One thread owns all state and never waits for workers, disk or text. It holds
// a window of requests for each pipeline: twice as many as can run, so memory
// does not grow with the job. A request is in one pipeline at a time: if that
// stops, in any that has room goes on from the tokens known so far.
class Dispatcher {
 public:
  struct Options {
    ClusterOptions cluster;
    PlanRequest planning;           // for cluster.plan_jobs: see FindPlan
    BlockDriver::Options driver;    // with the cluster's clock
    RequestQueue* queue = nullptr;  // both must outlive the dispatcher
    MetricsRegistry* metrics = nullptr;
    bool refill = true;
    // Shares the KV pages by the sequences' future use, where all stages take
    // them by need; false: by each sequence's maximum, always.
    bool kv_by_need = true;
    // Has requests share what they begin with, where all stages can.
    bool share_prefixes = true;
    // Which of the waiting requests go first.
    Order order = Order::kArrival;
    int32_t min_window = 64;  // requests held at least
    // With Order::kLongest, requests held at most, while their prompts have no
    // more than so many tokens: of these the longest are chosen.
    int32_t max_window = 1024;
    int64_t max_window_tokens = 8 << 20;
    // Nothing more is computed while the queue has this much to store: results
    // with scores of long prompts are large, and no number of requests bounds
    // them.
    int64_t max_unwritten_bytes = 128 << 20;
    // The interval at which time-outs, reports and metrics are checked.
    absl::Duration tick_interval = absl::Milliseconds(50);
    absl::Duration report_interval = absl::Milliseconds(200);
    // The interval at which the tokens of unfinished requests are stored: what
    // a crash of the process may lose.
    absl::Duration keep_interval = absl::Minutes(1);
  };

  static absl::StatusOr<std::unique_ptr<Dispatcher>> Create(Options options);
  ~Dispatcher() { Shutdown(); }

  // The sink for WorkerAttachService.
  WorkerEventSink* sink() { return &inbox_; }

  // Called when there may be new requests. Never waits.
  void NotifyWork() { inbox_.NotifyWork(); }
  // Ends the job's requests with kCancelled. Never waits.
  void Cancel(JobId job) { inbox_.Cancel(job); }
  // Gives requests that are not begun back to the queue, and takes those that
  // are to go first now. Never waits.
  void Reorder() { inbox_.Reorder(); }
  // Has plans do without the worker of that name, or use it again. Never waits.
  void Drain(const std::string& worker, bool drained) {
    inbox_.Drain(worker, drained);
  }
  // Gives the tokens known so far to the queue, to be stored. Returns when the
  // queue has them.
  void KeepTokens();
  // Looks at the clock and at the queue's backlog now. Never waits.
  void Tick() { inbox_.Wake(); }

  // The state that the dispatcher and its membership know.
  v1::ClusterState cluster_state() const;
  // True while a plan runs.
  bool ready() const;
  // What the cluster did lately.
  const TraceLog& trace() const { return trace_; }

  // Stops the thread. Ended requests are completed, the others are left without
  // a result; the queue gets their tokens. Called by the destructor too.
  void Shutdown();

 private:
  explicit Dispatcher(Options options);

  void Run();
  void OnWorker(WorkerEvent event);
  // A pipeline's requests; see Membership for the pipelines' numbers.
  struct Lane {
    explicit Lane(const BlockDriver::Options& options) : driver(options) {}

    // Sequences that can be admitted at once.
    int64_t slots = 0;
    int64_t window = 0;  // requests held, as a rule at most
    int64_t tokens = 0;  // sampled since the dispatcher began
    // Requests that wait for its next epoch, since no other pipeline holds
    // them; as of the last report.
    int64_t awaiting = 0;
    BlockDriver driver;
  };

  void OnMessage(WorkerId worker, v1::WorkerMessage message);
  void OnResult(const v1::StepResult& message);
  void OnFetched(absl::StatusOr<std::vector<Request>> requests);
  void OnCancel(JobId job);
  void GiveBackWaiting();
  void Search(PlanTask task);
  void Resolve(const WorkerRegistry::Lookup& lookup);
  // Advances everything as far as possible now.
  void Pump();
  // Makes lanes for new pipelines.
  void AddLanes();
  // Starts and stops the lane's epoch with the pipeline's plan.
  void FollowPlan(size_t pipeline);
  void SendSteps(size_t pipeline);
  void CompleteFinished();
  // Moves requests to lanes that can go on with them.
  void MoveRequests();
  void MoveUnfit(size_t from);
  void MoveFromLost();
  // Whether it fits no pipeline that runs.
  bool FitsNone(const SequenceState& sequence) const;
  void EvenOut();
  // Returns the lane for a request that was fetched for one: where others begin
  // like it, unless that one is fuller by a part of its window.
  Lane& LaneFor(const Request& request);
  void FetchMore();
  // Returns how many requests a lane wants to hold.
  int64_t Wanted(const Lane& lane) const;
  int64_t live() const;  // requests in all lanes
  // Gives new tokens to the queue.
  void StoreTokens();
  void ReportJobs();
  void Measure();
  void Observe();
  void DescribeLanes(v1::ClusterState* state) const;
  // Says which requests wait for a pipeline that does not run; "" for none.
  std::string AwaitedDetail();
  void Publish();

  const Options options_;
  const Clock* const clock_;
  Inbox inbox_;
  TraceLog trace_;
  // Threads for work that may wait: reading requests, searching for plans,
  // looking names up. Null after Shutdown.
  std::unique_ptr<Executor> fetcher_;
  std::unique_ptr<Executor> planner_;
  std::unique_ptr<Executor> resolver_;
  std::atomic<bool> stopping_ = false;
  // The ticket of the newest search of each pipeline, and of that for groups.
  Mutex searches_mu_;
  std::map<size_t, int64_t> newest_search_ ABSL_GUARDED_BY(searches_mu_);

  // These are used by the dispatcher's thread only.
  Membership membership_;
  BusyTime busy_time_;                        // of all lanes
  std::vector<std::unique_ptr<Lane>> lanes_;  // one for each pipeline
  DispatchMetrics metrics_;
  bool maybe_work_ = true;
  bool fetching_ = false;
  size_t fetching_for_ = 0;      // the lane
  bool work_meanwhile_ = false;  // since the fetch under way began
  absl::flat_hash_set<JobId> cancelled_meanwhile_;
  bool reordered_meanwhile_ = false;
  std::string fetch_failure_;
  std::string detail_;
  std::optional<std::string> reported_detail_;
  Membership::Phase published_phase_ = Membership::Phase::kNoPlan;
  absl::Duration reported_at_;
  absl::Duration kept_at_;  // when tokens were given to the queue
  EventRate rate_;          // of sampled tokens

  mutable Mutex mu_;
  v1::ClusterState state_ ABSL_GUARDED_BY(mu_);
  bool ready_ ABSL_GUARDED_BY(mu_) = false;
  // Calls of KeepTokens, and how many were obeyed; all, once the thread ends.
  CondVar kept_;
  int64_t keeps_asked_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t keeps_done_ ABSL_GUARDED_BY(mu_) = 0;
  Mutex shutdown_mu_;
  Thread thread_ ABSL_GUARDED_BY(shutdown_mu_);
};

}  // namespace sluice
