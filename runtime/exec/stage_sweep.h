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
  // Finishes an item's attention, and computes all behind it; of a mixture, no
  // more than which experts its rows take.
  absl::Status ComputeItem(size_t item, const Backend::PackedLayer& packed);
  // Puts away the item's stream, or, after the last layer, gives it on.
  absl::Status EndItem(size_t item, const Emit& emit, bool emits);
  absl::Status EmitStream(int32_t k, const Emit& emit);
  // Layers here count from the stage's first.
  const LayerLayout& Layout(int layer) const {
    return parts_.backend.weights->layer(options_.layers.begin + layer);
  }
  bool IsMixture(int layer) const;
  // Whether all micro-batches pass through a mixture's experts together. Then
  // what the experts made of one is added to it in its next turn.
  bool SharesExperts(int layer) const;
  // Has no expert of a layer read before it is known which ones have rows, if
  // so few come that many may have none.
  void HoldBackExperts(int layer, bool next_time);
  // Runs the experts for all rows that were routed.
  absl::Status RunExperts(int layer);
  // Adds to a micro-batch, which is held, what the experts made of it.
  absl::Status AddExperts(int layer, int32_t k);
  // Does so, where it is left to the end, and gives the streams on.
  absl::Status EndStreams(const Emit& emit, bool emits);
  // Returns a micro-batch's first row among a mixture's.
  int32_t FirstRow(int32_t k) const { return row_by_row_ ? 0 : first_rows_[k]; }
  absl::StatusOr<Backend::PackedLayer> AcquireLayer(int layer);
  absl::Status RunHead(const StepPlan& plan);

  const StageOptions options_;
  const bool last_;
  const bool row_by_row_;  // layers, of which there are several
  const PlanLimits limits_;
  StageParts parts_;
  Backend& backend_;
  Weights& weights_;
  Activations& activations_;
  Attention& attention_;
  PageTables tables_;
  std::array<int64_t, kNumTiers> max_run_pages_;

  StepWork work_;
  const MixtureSpec mixture_;  // without experts: there are no mixtures
  const int64_t mixture_rows_;
  std::vector<int32_t> first_rows_;  // of micro-batches, among a mixture's
  std::vector<BatchView> views_;     // for Replay
  std::vector<float*> rows_of_;      // parallel
};

}  // namespace sluice
