#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "runtime/collective/collective.h"
#include "runtime/exec/stage_executor.h"
#include "runtime/exec/stage_options.h"
#include "runtime/model/checkpoint/tensor_source.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// A stage that several ranks compute together, tensor parallel: each is a stage
// of its own, with its part of the weights and of the KV heads (TensorShard),
// on a device or some cores of its own. All get the same plans and do the same
// steps; their backends exchange columns. The leading rank takes the stage's
// input, gives its output, and samples.
//
// Each rank has a thread, which makes all calls of its executor. What one rank
// may not know of, as that another failed, ends what it waits for.
class TensorStage : public StageExecutor {
 public:
  // As LoadStage, for options of several ranks.
  static absl::StatusOr<std::unique_ptr<StageExecutor>> Load(
      const DecoderSpec& spec, const TensorSource& source,
      const StageOptions& options, const Progress& progress,
      const std::atomic<bool>* cancelled);
  ~TensorStage() override;

  // Pages that every rank has.
  int64_t kv_pages() const override;
  bool kv_by_need() const override;
  bool kv_shared() const override;
  WindowRoom kv_window() const override;
  int64_t kv_pages_used() const override { return lead().kv_pages_used(); }
  int32_t page_tokens() const override { return lead().page_tokens(); }
  // Sums of all ranks.
  uint64_t kv_host_used_bytes() const override;
  uint64_t weight_bytes() const override { return placement_.weight_bytes; }
  const RealisedPlacement& placement() const override { return placement_; }
  // Seconds are the greatest of a rank, bytes those of all.
  SweepStats stats() const override;
  bool is_first() const override { return lead().is_first(); }
  bool is_last() const override { return lead().is_last(); }
  std::shared_ptr<ActivationPool> input_buffers() override {
    return lead().input_buffers();
  }
  // `emit` is called by the leading rank's thread.
  absl::Status RunStep(const StepPlan& plan, StepInputs* inputs,
                       const Emit& emit, StepResult* result) override;
  void Reset() override;

 private:
  struct Rank;
  using Task = absl::FunctionRef<absl::Status(Rank* rank)>;

  explicit TensorStage(const StageOptions& options);
  // Gives each rank its part of the budgets, the threads and the policy.
  void Share(const DecoderSpec& spec, const StageOptions& options);
  // Has each rank's thread do the task, and waits for all. Returns the error
  // that came first; the other ranks' wait for it then ends.
  absl::Status RunOnRanks(Task task) {
    return RunOnRanks(task, absl::InfiniteDuration(), [] {});
  }
  // The same, and calls `meanwhile` whenever so much time has passed.
  absl::Status RunOnRanks(Task task, absl::Duration interval,
                          absl::FunctionRef<void()> meanwhile);
  void Loop(Rank& rank);
  void SumPlacements();

  StageExecutor& lead() const;

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<CollectiveGroup> columns_, streams_;
  RealisedPlacement placement_;
  std::atomic<bool> stop_loading_{false};

  Mutex mu_;
  CondVar changed_;
  const Task* task_ ABSL_GUARDED_BY(mu_) = nullptr;
  int64_t task_number_ ABSL_GUARDED_BY(mu_) = 0;
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status first_error_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice
