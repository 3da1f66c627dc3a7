#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/host/logging.h"
#include "common/threads/clock.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "common/threads/work_marks.h"
#include "runtime/exec/stage_executor.h"
#include "runtime/exec/stage_resources.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/model/checkpoint/model_content.h"
#include "worker/link/link.h"
#include "worker/link/link_service.h"
#include "worker/runtime_report.h"
#include "worker/stage/step_intake.h"
#include "worker/usage_meter.h"
#include "worker/worker_metrics.h"

namespace sluice {

class SpanLog;
struct AssignedModel;
struct AssignedStage;
struct StageOptions;

namespace v1 {
class Activity;
}  // namespace v1

// LoadStage for one model directory.
using StageLoader =
    std::function<absl::StatusOr<std::unique_ptr<StageExecutor>>(
        const StageOptions& options, const StageExecutor::Progress& progress,
        const std::atomic<bool>* cancelled)>;

// LoadStage for a model that is assigned with the stage. `fetching` tells of
// the files' bytes that are fetched before.
using ModelLoader =
    std::function<absl::StatusOr<std::unique_ptr<StageExecutor>>(
        const AssignedModel& model, const StageOptions& options,
        const StageExecutor::Progress& fetching,
        const StageExecutor::Progress& progress,
        const std::atomic<bool>* cancelled)>;

// Runs the stages that a worker is assigned, one after the other.
//
// One thread owns the executor: it loads, connects to the next stage, takes
// steps in the order in which they come, and computes them: a step begins with
// its first micro-batch, while the others arrive. While a stage runs,
// a second thread sends the first one's results. Everything else only enqueues.
// Frames come by the runner's own LinkService.
//
// A stage ends when its epoch does: by a newer assignment, by Retire or Detach,
// or by an error, of which the first is reported. Weights stay loaded until
// another assignment needs others, the model's files turn out to hold others,
// or Retire. A preparation only loads, and ends with the next assignment, which
// finds the weights there. Thread-safe.
class StageRunner : public FrameSink {
 public:
  // All pointers but those of `transports` must outlive the runner.
  struct Options {
    StageLoader loader;
    ModelLoader model_loader;  // for assigned models
    // The content of the model's files, as the coordinator is told: weights
    // loaded from other content are loaded again. Empty, as in tests: the
    // content never changes.
    std::function<ModelContent()> content;
    int64_t hidden_size = 0;
    // The policy may name another number of compute threads; they are pinned
    // while a stage runs, if there are as many as cores.
    StageResources resources;
    // The same of a stage of so many ranks, as a policy names them; null: there
    // is one rank.
    std::function<absl::StatusOr<StageResources>(int32_t ranks)> with_ranks;
    // Of the devices beside the first, for the report.
    std::vector<const MemoryBudget*> other_device_budgets;
    LinkFactory* links = nullptr;
    // Must be stopped or destroyed before the runner.
    LinkTransports transports;
    CallGuard* guard = nullptr;  // of links; must outlive the runner
    const WorkerMetrics* metrics = nullptr;
    const Clock* clock = nullptr;
    // Called with the error of a failed stage, after it was reported, if the
    // device is lost (common/device_loss.h). Runs on the compute thread; must
    // not wait. May be empty.
    std::function<void(const absl::Status&)> on_device_loss;
    LogLevel failure_level = LogLevel::kError;  // as in Worker::Options
    // The next worker's time to take the link; it may just be starting.
    absl::Duration connect_timeout = absl::Seconds(20);
  };
  explicit StageRunner(Options options);
  ~StageRunner() override;

  // The service by which the stage before reaches this one. The runner must
  // outlive the server that serves it.
  grpc::Service* link_service() { return receiver_->service(); }

  // Ends the current stage and begins another, or prepares it. Reports
  // kFailedPrecondition if the current one is of a newer epoch, or of the same
  // one and not its preparation.
  void Assign(AssignedStage assignment);
  // Ends the current stage and drops the weights.
  void Retire();
  // The coordinator is gone: ends the current stage, and forgets its epoch.
  void Detach();
  // Takes a step's plan at the first stage.
  void OnPlan(StepPlan plan);
  // Called for a plan that could not be read; ends the stage of its epoch.
  void OnBadPlan(PlanEpoch epoch, const absl::Status& status);

  // Called when the stage before has made the channel of its link.
  void OnLinkId(PlanEpoch epoch, const std::string& id);

  absl::Status OnFrame(ActivationFrame frame,
                       std::function<void()> on_consumed) override;
  void OnLinkBroken(PlanEpoch epoch, const absl::Status& status) override;

  // Whether a stage is assigned, loaded and running.
  bool ready() const;
  UsageTotals usage() { return meter_.totals(); }
  v1::Activity activity() const;
  uint64_t link_bytes_sent() const { return link_bytes_sent_; }
  int64_t kv_pages_used() const { return kv_pages_used_; }
  // The state after the last step.
  RuntimeReport report() const;
  // What the stages did and do.
  SpanLog& spans() { return *spans_; }

  void Shutdown();

 private:
  struct Run;
  class ArrivingInputs;
  using RunPtr = std::shared_ptr<Run>;

  RunPtr current() const;
  // Makes `next` (may be null) current and ends the one before.
  void Replace(RunPtr next, bool drop_weights);
  static void Stop(Run& run);
  // Ends `run` and reports why, unless it has ended already.
  void Fail(Run& run, const absl::Status& status);

  // These run on the compute thread.
  absl::StatusOr<StageResources> ResourcesOf(const AssignedStage& a) const;
  void ComputeLoop();
  void Play(Run& run);
  absl::Status Prepare(Run& run);
  absl::Status LoadExecutor(Run& run);
  // The content of the model's files, and the model's hidden size.
  ModelContent Content(const AssignedStage& a) const;
  int64_t HiddenSize(const AssignedStage& a) const;
  void DropExecutor();
  absl::Status ConnectNext(Run& run);
  size_t MaxPayloadBytes(const AssignedStage& a) const;
  absl::Status Compute(Run& run);
  absl::Status Emit(Run& run, ActivationFrame frame);
  void PublishKvUsage();
  void PublishReport();

  // Runs on the sender thread.
  void SendLoop(Run& run);

  const Options options_;
  const std::unique_ptr<LinkService> receiver_;
  UsageMeter meter_;
  std::atomic<uint64_t> link_bytes_sent_{0};
  std::atomic<int64_t> kv_pages_used_{0};
  WorkMarks marks_;
  const std::unique_ptr<SpanLog> spans_;

  mutable Mutex mu_;
  CondVar changed_;
  RunPtr run_ ABSL_GUARDED_BY(mu_);  // null: no stage
  bool drop_weights_ ABSL_GUARDED_BY(mu_) = false;
  bool shutdown_ ABSL_GUARDED_BY(mu_) = false;
  RuntimeReport report_ ABSL_GUARDED_BY(mu_);

  // These are used by the compute thread only.
  std::unique_ptr<StageExecutor> executor_;
  std::shared_ptr<const AssignedStage>
      loaded_;                   // the stage that executor_ holds
  ModelContent loaded_content_;  // its content as it was loaded
  MemoryCharge link_staging_;    // on the device, while executor_ is there
  SweepStats earlier_stats_;     // of the executors before
  uint64_t kv_host_peak_bytes_ = 0;

  Thread compute_;
};

}  // namespace sluice
