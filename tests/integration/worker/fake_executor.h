#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/threads/mutex.h"
#include "runtime/exec/stage_executor.h"
#include "runtime/exec/stage_options.h"
#include "worker/stage/stage_runner.h"

namespace sluice {

// A test's access to the executors of one worker. Thread-safe.
class FakeModel {
 public:
  static constexpr int64_t kHidden = 8;
  static constexpr int32_t kLayers = 6;

  // A stage that loads waits here while the gate is closed; so does a step.
  void CloseLoadGate() { Set(&load_gate_, false); }
  void OpenLoadGate() { Set(&load_gate_, true); }
  void CloseStepGate() { Set(&step_gate_, false); }
  void OpenStepGate() { Set(&step_gate_, true); }
  // A step waits here with its micro-batches behind the first one.
  void CloseBatchGate() { Set(&batch_gate_, false); }
  void OpenBatchGate() { Set(&batch_gate_, true); }
  void FailLoads(absl::Status status) {
    MutexLock lock(&mu_);
    load_error_ = std::move(status);
  }
  void FailSteps(absl::Status status) {
    MutexLock lock(&mu_);
    step_error_ = std::move(status);
  }
  // Waits for a load or a step to have come to its gate.
  void AwaitLoads(int n) { Await(&loads_, n); }
  void AwaitSteps(int n) { Await(&steps_, n); }
  // Waits for so many micro-batches to have been computed.
  void AwaitBatches(int n) { Await(&batches_, n); }
  int loads() const { return Get(&loads_); }
  int cancelled_loads() const { return Get(&cancelled_loads_); }
  int resets() const { return Get(&resets_); }
  int live_executors() const { return Get(&live_); }

  StageLoader Loader();

 private:
  friend class FakeExecutor;
  void Set(bool* gate, bool open) {
    MutexLock lock(&mu_);
    *gate = open;
    changed_.NotifyAll();
  }
  int Get(const int* counter) const {
    MutexLock lock(&mu_);
    return *counter;
  }
  void Add(int* counter, int amount) {
    MutexLock lock(&mu_);
    *counter += amount;
    changed_.NotifyAll();
  }
  void Await(const int* counter, int n) {
    MutexLock lock(&mu_);
    while (*counter < n) changed_.Wait(&mu_);
  }
  absl::Status PassLoad(const std::atomic<bool>* cancelled) {
    Add(&loads_, 1);
    MutexLock lock(&mu_);
    while (!load_gate_ && !*cancelled) {
      // Like a real load, it checks from time to time.
      changed_.WaitFor(&mu_, absl::Milliseconds(1));
    }
    if (*cancelled) {
      ++cancelled_loads_;
      changed_.NotifyAll();
      return absl::CancelledError("cancelled");
    }
    return load_error_;
  }
  absl::Status PassStep() {
    Add(&steps_, 1);
    MutexLock lock(&mu_);
    while (!step_gate_) changed_.Wait(&mu_);
    return step_error_;
  }
  void PassBatch(size_t k) {
    MutexLock lock(&mu_);
    while (k > 0 && !batch_gate_) changed_.Wait(&mu_);
  }

  mutable Mutex mu_;
  CondVar changed_;
  bool load_gate_ = true;
  bool step_gate_ = true;
  bool batch_gate_ = true;
  absl::Status load_error_;
  absl::Status step_error_;
  int loads_ = 0;
  int cancelled_loads_ = 0;
  int steps_ = 0;
  int batches_ = 0;
  int resets_ = 0;
  int live_ = 0;
};

// An executor whose arithmetic can be done by hand: the embedding of token t is
// t in every column, layer j adds 10^j, and the "sampled" token is a segment's
// last row's value. So layers that are skipped, repeated or given other rows
// show.
class FakeExecutor : public StageExecutor {
 public:
  FakeExecutor(FakeModel* model, const StageOptions& options)
      : model_(model), options_(options) {
    model_->Add(&model_->live_, 1);
  }
  ~FakeExecutor() override { model_->Add(&model_->live_, -1); }

  static int32_t Expected(int32_t token,
                          LayerRange layers = {0, FakeModel::kLayers}) {
    int32_t power = 1;
    for (int j = 0; j < layers.end; ++j, power *= 10) {
      if (j >= layers.begin) token += power;
    }
    return token;
  }

  int64_t kv_pages() const override { return 100; }
  bool kv_by_need() const override { return true; }
  int64_t kv_pages_used() const override { return sequences_; }
  int32_t page_tokens() const override { return 16; }
  uint64_t weight_bytes() const override {
    return 1000 * static_cast<uint64_t>(options_.layers.size());
  }
  const RealisedPlacement& placement() const override { return placement_; }
  SweepStats stats() const override { return stats_; }
  bool is_first() const override { return options_.layers.begin == 0; }
  bool is_last() const override {
    return options_.layers.end == FakeModel::kLayers;
  }
  void Reset() override {
    sequences_ = 0;
    model_->Add(&model_->resets_, 1);
  }

  absl::Status RunStep(const StepPlan& plan, StepInputs* inputs,
                       const Emit& emit, StepResult* result) override {
    if (absl::Status status = model_->PassStep(); !status.ok()) return status;
    stats_.projection_seconds += 0.5;
    stats_.disk_read_bytes += 100;
    sequences_ += static_cast<int64_t>(plan.admit.size()) -
                  static_cast<int64_t>(plan.release.size());
    for (size_t k = 0; k < plan.micro_batches.size(); ++k) {
      model_->PassBatch(k);
      const MicroBatch& batch = plan.micro_batches[k];
      const auto rows = static_cast<int64_t>(batch.tokens.size());
      std::shared_ptr<ActivationBuffer> x;
      if (is_first()) {
        x = pool_.Acquire(rows, FakeModel::kHidden);
      } else {
        auto taken = inputs->Take(static_cast<int32_t>(k));
        if (!taken.ok()) return taken.status();
        x = *std::move(taken);
      }
      if (x->rows() != rows) return absl::InvalidArgumentError("wrong rows");
      for (int64_t r = 0; r < rows; ++r) {
        float* row = x->data() + r * FakeModel::kHidden;
        if (is_first()) std::fill_n(row, FakeModel::kHidden, batch.tokens[r]);
        for (int64_t c = 0; c < FakeModel::kHidden; ++c) {
          row[c] = static_cast<float>(
              Expected(static_cast<int32_t>(row[c]), options_.layers));
        }
      }
      model_->Add(&model_->batches_, 1);
      if (!is_last()) {
        if (absl::Status s = emit(static_cast<int32_t>(k), x); !s.ok()) {
          return s;
        }
        continue;
      }
      int64_t row = 0;
      for (const Segment& segment : batch.segments) {
        row += segment.num_tokens;
        if (!segment.sample) continue;
        const float value = x->data()[row * FakeModel::kHidden - 1];
        result->tokens.push_back(
            {segment.sequence, static_cast<int32_t>(value), 0, {}});
      }
    }
    return absl::OkStatus();
  }

 private:
  FakeModel* const model_;
  const StageOptions options_;
  const RealisedPlacement placement_ = {.weight_bytes = 1000,
                                        .weight_host_bytes = 400,
                                        .kv_bytes = 50,
                                        .kv_host_bytes = 20};
  SweepStats stats_;  // each step adds half a second and 100 bytes
  ActivationPool pool_;
  int64_t sequences_ = 0;
};

inline StageLoader FakeModel::Loader() {
  return [this](const StageOptions& options,
                const StageExecutor::Progress& progress,
                const std::atomic<bool>* cancelled)
             -> absl::StatusOr<std::unique_ptr<StageExecutor>> {
    progress(0, 1000);
    if (absl::Status s = PassLoad(cancelled); !s.ok()) return s;
    progress(1000, 1000);
    return std::make_unique<FakeExecutor>(this, options);
  };
}

}  // namespace sluice
