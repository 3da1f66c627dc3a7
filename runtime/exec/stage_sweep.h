#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/exec/plan_check.h"
#include "runtime/exec/stage_executor.h"
#include "runtime/exec/stage_options.h"
#include "runtime/exec/stage_parts.h"
#include "runtime/exec/stage_work.h"
#include "runtime/kernels/backend.h"
#include "runtime/kv/batch_view.h"
#include "runtime/kv/sequence_pages.h"

namespace sluice {

// The sweep: one schedule over all tiers. For each layer and each micro-batch
// it has the weights, the KV pages and the residual stream brought to where
// they are computed with, computes, and has what changed put away; meanwhile
// the streams bring what comes next. Where things live is the streams' matter.
class StageSweep : public StageExecutor {
 public:
  // A rank that does not lead has its residual streams from the one that does.
  StageSweep(const DecoderSpec& spec, const StageOptions& options,
             TensorRank rank, StageParts parts);
  ~StageSweep() override;

  int64_t kv_pages() const override { return tables_.num_pages(KvGroup::kAll); }
  bool kv_by_need() const override { return tables_.by_need(); }
  bool kv_shared() const override { return tables_.can_share(); }
  WindowRoom kv_window() const override {
    return {tables_.num_pages(KvGroup::kWindow), tables_.window_pages()};
  }
  int64_t kv_pages_used() const override {
    return tables_.num_used(KvGroup::kAll);
  }
  uint64_t kv_host_used_bytes() const override;
  int32_t page_tokens() const override { return kPageTokens; }
  uint64_t weight_bytes() const override {
    return parts_.placement.weight_bytes;
  }
  bool is_first() const override { return limits_.first; }
  bool is_last() const override { return last_; }
  absl::Status RunStep(const StepPlan& plan, StepInputs* inputs,
                       const Emit& emit, StepResult* result) override;
  std::shared_ptr<ActivationPool> input_buffers() override {
    return parts_.buffers;
  }
  void Reset() override;
  SweepStats stats() const override { return parts_.Totals(); }
  const RealisedPlacement& placement() const override {
    return parts_.placement;
  }

 private:
  absl::Status Sweep(const StepPlan& plan, StepInputs* inputs, const Emit& emit,
                     StepResult* result);
  // Releases, admits and checks what the plan says; sets work_.
  absl::Status Admit(const StepPlan& plan, StepInputs* inputs);
  // Tells all streams of the step.
  absl::Status BeginStep(const StepPlan& plan);
  // Runs the step's layers: item by item, or as a whole, by a backend that has
  // recorded such steps.
  absl::Status RunLayers(const Emit& emit);
  // Whether nothing that the layers compute with moves, nor is given on before
  // all are done.
  bool IsFixed() const;
  absl::StatusOr<bool> Replay();
  absl::Status RunItems(const Emit& emit, bool emits);
  absl::Status FinishItem(size_t item, const Backend::PackedLayer& packed,
                          const Emit& emit, bool emits);
  // Adds the MLP, or the mixture, to a micro-batch.
  absl::Status FeedForward(int layer, const Backend::PackedLayer& packed,
                           const BatchWork& work);
  absl::StatusOr<Backend::PackedLayer> AcquireLayer(int layer);
  absl::Status RunHead(const StepPlan& plan);

  const StageOptions options_;
  const bool last_;
  const bool row_by_row_;
  const PlanLimits limits_;
  StageParts parts_;
  Backend& backend_;
  Weights& weights_;
  Activations& activations_;
  Attention& attention_;
  PageTables tables_;
  std::array<int64_t, kNumTiers> max_run_pages_;

  StepWork work_;
  std::vector<BatchView> views_;  // for Replay
  std::vector<float*> rows_of_;   // parallel
};

}  // namespace sluice
