#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/step_plan.h"
#include "runtime/exec/sweep_stats.h"
#include "runtime/model/checkpoint/content_check.h"
#include "worker/channel_factory.h"
#include "worker/probe/link_survey.h"
#include "worker/stage/assigned_stage.h"
#include "worker/usage_meter.h"

namespace sluice {

namespace v1 {
class AssignStage;
}  // namespace v1

// What a worker tells about itself when it registers.
struct WorkerIdentity {
  std::string name;
  std::string link_address;
  uint64_t host_memory_bytes = 0;
  int32_t compute_threads = 0;
  std::string device;
  std::string version;
  std::string metrics_address;
  std::string model_dir;
  std::string profile_json;                    // "": none
  std::vector<LinkTransport> link_transports;  // see v1::Register
  std::string gpu_uuid;
};

struct WorkerTotals {
  UsageTotals usage;
  uint64_t link_bytes_sent = 0;
  uint64_t kv_pages_used = 0;
  StageActivity activity;
  SweepStats runtime;
};

// Receives what the coordinator says, on one thread, in order; must not wait.
class CoordinatorHandler {
 public:
  virtual ~CoordinatorHandler() = default;
  virtual void OnAttached() = 0;
  // `reporter` reaches the coordinator for as long as this stream lives.
  virtual void OnAssign(const v1::AssignStage& assignment,
                        std::shared_ptr<StageReporter> reporter) = 0;
  virtual void OnPlan(StepPlan plan) = 0;
  // A plan for `epoch` that can't be read.
  virtual void OnBadPlan(PlanEpoch epoch, const absl::Status& status) = 0;
  virtual void OnRetire(PlanEpoch epoch) = 0;
  virtual void OnLinkId(PlanEpoch epoch, const std::string& id) = 0;
  // `answer` may be called on any thread, once; it reaches the coordinator for
  // as long as this stream lives.
  virtual void OnMeasureLinks(std::vector<LinkSurvey::Peer> peers,
                              LinkSurvey::Done answer) = 0;
  // The same; of each peer, whether its link could be opened.
  virtual void OnReachLinks(std::vector<LinkSurvey::Peer> peers,
                            LinkSurvey::Reached answer) = 0;
  // Every OnAttached is followed by one.
  virtual void OnDetached() = 0;
  // For heartbeats; called on another thread.
  virtual WorkerTotals totals() = 0;
};

// A worker's side of WorkerService.Attach: keeps a stream open, whatever
// happens to the coordinator, until Shutdown. Thread-safe.
class CoordinatorClient {
 public:
  // Pointers must outlive the client.
  struct Options {
    std::string address;
    ChannelFactory channels;
    WorkerIdentity identity;
    // What the worker's copy of the model holds; null: nothing is told.
    ContentCheck* content = nullptr;
    CoordinatorHandler* handler = nullptr;
    // Doubles with each failure, up to 16 times as much.
    absl::Duration reconnect_delay = absl::Milliseconds(500);
  };

  static std::unique_ptr<CoordinatorClient> Start(Options options);
  virtual ~CoordinatorClient() = default;

  // Takes leave of the coordinator and ends the threads. Called by the
  // destructor too.
  virtual void Shutdown() = 0;
};

}  // namespace sluice
