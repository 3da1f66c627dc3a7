#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "runtime/exec/activations/activation_stager.h"
#include "runtime/exec/activations/device_activations.h"
#include "runtime/exec/attention/device_attention.h"
#include "runtime/exec/device_compute.h"
#include "runtime/exec/kv/kv_stager.h"
#include "runtime/exec/plan_check.h"
#include "runtime/exec/stage_executor.h"
#include "runtime/exec/stage_head.h"
#include "runtime/exec/stage_work.h"
#include "runtime/exec/weights/device_weights.h"
#include "runtime/exec/weights/embedding_store.h"
#include "runtime/exec/weights/weight_store.h"
#include "runtime/kernels/backend.h"
#include "runtime/kernels/backend_parts.h"
#include "runtime/kv/batch_view.h"
#include "runtime/kv/kv_arena.h"
#include "runtime/kv/sequence_pages.h"
#include "runtime/memory/device.h"
#include "runtime/memory/work_buffer.h"
#include "runtime/trace/trace.h"

namespace sluice {

// What a stage is made of; see LoadStage.
struct StageParts {
  // Destroyed last.
  std::unique_ptr<IoEngine> io;  // with anything on disk
  std::unique_ptr<SweepStats> stats;
  std::unique_ptr<Device> device;  // null: device and host memory are the same
  BackendParts compute;
  int32_t head_rows = 0;  // BackendOptions'
  // With a device: embeds, and attends to KV that is not on the device.
  BackendParts host;
  std::unique_ptr<EmbeddingStore> embedding;  // first stage
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<KvArena> kv;         // null if no sequence is in host memory
  std::unique_ptr<KvArena> device_kv;  // null if none is on a device
  std::unique_ptr<KvStager> stager;    // null if none is on disk
  PageTables::TierPages pages = {};
  WorkBuffer expanded;  // a layer's full weights, if they are expanded at all
  MemoryCharge activations;
  // With a share of them on disk; see ActivationStager.
  std::unique_ptr<ActivationStager> activation_stager;
  RealisedPlacement placement;
  TraceRow* trace_row = nullptr;  // of the computing thread; may be null
  // With a device.
  std::unique_ptr<DeviceCompute> device_compute;
  std::unique_ptr<DeviceWeights> device_weights;
  std::unique_ptr<DeviceActivations> device_activations;
  std::unique_ptr<DeviceAttention> device_attention;
};

// The sweep over one backend.
class StageSweep : public StageExecutor {
 public:
  StageSweep(const DecoderSpec& spec, const Options& options, StageParts parts);
  ~StageSweep() override;

  int64_t kv_pages() const override { return tables_.num_pages(); }
  bool kv_by_need() const override { return tables_.by_need(); }
  int64_t kv_pages_used() const override { return tables_.num_used(); }
  uint64_t kv_host_used_bytes() const override {
    return parts_.kv == nullptr
               ? 0
               : parts_.kv->BytesOf(tables_.pool(Tier::kHost).touched());
  }
  int32_t page_tokens() const override { return kPageTokens; }
  uint64_t weight_bytes() const override {
    return parts_.placement.weight_bytes;
  }
  bool is_first() const override { return limits_.first; }
  bool is_last() const override { return last_; }
  absl::Status RunStep(const StepPlan& plan,
                       std::span<std::shared_ptr<ActivationBuffer>> hidden,
                       const Emit& emit, StepResult* result) override;
  std::shared_ptr<ActivationPool> input_buffers() override { return buffers_; }
  void Reset() override;
  SweepStats stats() const override;
  const RealisedPlacement& placement() const override {
    return parts_.placement;
  }

 private:
  absl::Status Sweep(const StepPlan& plan,
                     std::span<std::shared_ptr<ActivationBuffer>> hidden,
                     const Emit& emit, StepResult* result);
  absl::Status ReleaseAndAdmit(const StepPlan& plan);
  void View(const MicroBatch& batch, StageWork* work,
            std::vector<KvStager::Group>* groups);
  // The (layer, micro-batch) pairs of a step, in the schedule's order; layers
  // count from the stage's first.
  void OrderItems(size_t num_batches);
  absl::StatusOr<ImageView> AcquireUnit(int unit);
  absl::Status ReleaseUnit(int unit);
  // With a device: waits for it, whatever becomes of what it computes.
  void Settle();
  // kInvalidArgument if a sequence is in two groups of the step: each would
  // have pages of its own.
  absl::Status CheckStaged(size_t num_batches);
  absl::StatusOr<Backend::LayerImage> AcquireLayer(int local);
  absl::StatusOr<ImageView> AcquireHead(int section);
  // Tells the weights in which order the step uses them.
  void BeginWeights(const StepPlan& plan);
  // Tells the activation stager whose turn it is when.
  absl::Status BeginTurns(size_t num_batches);
  // Points StageWork::rows of the item's micro-batch at its residual stream,
  // where the item is computed. Without a device, it begins with the embedding
  // or with `hidden` here.
  absl::Status BringRows(size_t item,
                         std::span<std::shared_ptr<ActivationBuffer>> hidden);
  // With a device: gives all micro-batches their residual streams.
  absl::Status Enter(std::span<std::shared_ptr<ActivationBuffer>> hidden,
                     size_t num_batches);
  // x = embedding, in host memory.
  absl::Status Embed(const BatchView& view, float* x);
  // What the stage gives on of micro-batch `k`.
  absl::StatusOr<std::shared_ptr<ActivationBuffer>> Output(int32_t k);
  // The two halves of an item: up to what can be begun of its attention, and
  // the rest. Between them another item may begin, if MayDefer().
  absl::Status BeginItem(size_t item, const Backend::LayerImage& image);
  absl::Status FinishItem(size_t item, const Backend::LayerImage& image);
  // Whether there is something to wait for in this item that the next one need
  // not wait for.
  bool MayDefer(size_t item) const;
  absl::Status AttendItem(size_t item);
  absl::Status RunHead(const StepPlan& plan);
  // Whether nothing of the step's layers is anywhere but on a device, nor given
  // on before all are done.
  bool StaysOnDevice(size_t num_batches) const;
  // The step's items, one after the other.
  absl::Status RunItems(std::span<std::shared_ptr<ActivationBuffer>> hidden,
                        size_t num_batches, const Emit& emit);
  // Of a step that stays on the device: by the backend as a whole, if it has
  // recorded such steps.
  absl::Status RunOnDevice(std::span<std::shared_ptr<ActivationBuffer>> hidden,
                           size_t num_batches, const Emit& emit);

  const Options options_;
  const bool last_;
  const PlanLimits limits_;
  StageParts parts_;
  Backend* const backend_;
  Backend* const host_backend_;  // the same, where device and host are one
  // The device's own, or null.
  DeviceCompute* const device_compute_;
  DeviceWeights* const device_weights_;
  DeviceActivations* const device_x_;
  DeviceAttention* const device_attention_;
  PageTables tables_;
  const std::shared_ptr<ActivationPool> buffers_;
  TraceRow* const row_;

  std::unique_ptr<StageHead> head_;  // last stage
  std::vector<StageWork> work_;
  std::vector<std::vector<KvStager::Group>> groups_;  // by micro-batch
  absl::flat_hash_set<SequenceId> staged_;            // of the step
  std::vector<std::pair<int32_t, int32_t>> order_;
  std::vector<int32_t> turns_, batch_rows_;  // for the activation stager
  std::vector<BatchView> views_;             // for the backend
  std::vector<float*> rows_of_;              // parallel
  bool emits_later_ = false;  // what a step gives on, when its layers are done
};

}  // namespace sluice
