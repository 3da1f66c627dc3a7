#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "runtime/exec/activation_stager.h"
#include "runtime/exec/embedding_store.h"
#include "runtime/exec/kv_stager.h"
#include "runtime/exec/plan_check.h"
#include "runtime/exec/stage_executor.h"
#include "runtime/exec/weight_store.h"
#include "runtime/kernels/backend.h"
#include "runtime/kv/batch_view.h"
#include "runtime/kv/kv_arena.h"
#include "runtime/kv/sequence_pages.h"
#include "runtime/sample/sampler.h"
#include "runtime/trace/trace.h"

namespace sluice {

// What a stage is made of; see LoadStage.
struct StageParts {
  // Destroyed last.
  std::unique_ptr<IoEngine> io;  // with anything on disk
  std::unique_ptr<SweepStats> stats;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<EmbeddingStore> embedding;  // first stage
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<KvArena> kv;       // null if all sequences are on disk
  std::unique_ptr<KvStager> stager;  // null if none is
  PageTables::TierPages pages = {};
  HostBuffer expanded;  // a layer's full weights, if they are expanded at all
  // One of the two: with a share of the activations on disk, the stager.
  MemoryCharge activations;
  std::unique_ptr<ActivationStager> activation_stager;
  RealisedPlacement placement;
};

// The sweep over one backend.
class StageSweep : public StageExecutor {
 public:
  StageSweep(const DecoderSpec& spec, const Options& options, StageParts parts,
             int threads);
  ~StageSweep() override;

  int64_t kv_pages() const override { return tables_.num_pages(); }
  bool kv_by_need() const override { return tables_.by_need(); }
  int64_t kv_pages_used() const override { return tables_.num_used(); }
  int32_t page_tokens() const override { return kPageTokens; }
  uint64_t weight_bytes() const override {
    return parts_.placement.weight_bytes;
  }
  bool is_first() const override { return limits_.first; }
  bool is_last() const override { return last_; }
  absl::Status RunStep(const StepPlan& plan,
                       std::span<std::shared_ptr<ActivationBuffer>> hidden,
                       const Emit& emit, StepResult* result) override;
  void Reset() override;
  SweepStats stats() const override;
  const RealisedPlacement& placement() const override {
    return parts_.placement;
  }

 private:
  // Consecutive segments whose pages are in memory, or one group from disk.
  struct Run {
    int32_t first = 0;
    int32_t count = 0;
    bool staged = false;
  };
  // A micro-batch of the step at hand.
  struct Work {
    std::vector<SegmentView> segments;
    std::vector<Run> runs;
    std::vector<int32_t> padded_tokens;  // without packing
    BatchView view;
    std::shared_ptr<ActivationBuffer> x;  // null with an activation stager
    float* rows = nullptr;  // [view.rows, hidden], while it is its turn
  };
  // A row whose logits are wanted.
  struct HeadRow {
    SequenceId sequence;
    int32_t position;  // that its logits predict
    const Sampler* sampler;
    int32_t target;  // the token to be scored; -1: sample
    size_t slot;     // of the result's scores or tokens
  };

  absl::Status ReleaseAndAdmit(const StepPlan& plan);
  void View(const MicroBatch& batch, Work* work,
            std::vector<KvStager::Group>* groups);
  // The (layer, micro-batch) pairs of a step, in the schedule's order; layers
  // count from the stage's first.
  void OrderItems(size_t num_batches);
  // Tells the activation stager whose turn it is when.
  absl::Status BeginTurns(size_t num_batches);
  // Points Work::rows of the item's micro-batch at its residual stream, which
  // begins with the embedding or with `hidden`.
  absl::Status BringRows(size_t item,
                         std::span<std::shared_ptr<ActivationBuffer>> hidden);
  // What the stage gives on of micro-batch `k`.
  std::shared_ptr<ActivationBuffer> Output(int32_t k);
  absl::StatusOr<Backend::LayerImage> AcquireLayer(int local);
  absl::Status ComputeItem(size_t item, const Backend::LayerImage& image);
  absl::Status AttendItem(size_t item);
  absl::Status RunHead(const StepPlan& plan, StepResult* result);
  // Logits of the rows that the micro-batch's segments want sampled or scored.
  absl::Status SampleBatch(const MicroBatch& batch, const Work& work,
                           const ImageView& image, StepResult* result);

  const Options options_;
  const bool last_;
  const PlanLimits limits_;
  StageParts parts_;
  Backend* const backend_;
  PageTables tables_;
  ActivationPool buffers_;
  TraceRow* const row_;

  absl::flat_hash_map<SequenceId, std::unique_ptr<Sampler>> samplers_;
  std::vector<SamplerScratch> scratch_;  // per thread
  std::vector<Work> work_;
  std::vector<std::vector<KvStager::Group>> groups_;  // by micro-batch
  std::vector<std::pair<int32_t, int32_t>> order_;
  std::vector<int32_t> turns_, batch_rows_;  // for the activation stager
  std::vector<HeadRow> head_rows_;
  std::vector<int32_t> head_row_of_x_;  // parallel
};

}  // namespace sluice
