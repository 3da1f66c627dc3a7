#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/step_plan.h"
#include "common/types.h"
#include "runtime/exec/pool.h"
#include "runtime/exec/stream_context.h"
#include "runtime/exec/weights/weights.h"
#include "runtime/kernels/backend.h"
#include "runtime/kv/batch_view.h"
#include "runtime/placement/weight_units.h"
#include "runtime/sample/sample_token.h"
#include "runtime/sample/sampler.h"
#include "runtime/sample/sampler_scratch.h"
#include "runtime/weights/packed_view.h"
#include "runtime/weights/packed_weights.h"

namespace sluice {

// The last stage's end of a step: from the residual stream to logits, and from
// those to sampled tokens and scores; or to hidden states, which are pooled.
// The rows of several micro-batches go through the head together, as far as its
// input has room: its weights are then read, and dequantized, once for all of
// them. A head of several sections is passed through once for each such input.
// What can be answered where the backend has the logits is asked there
// (Sampler::Request); the host's threads do the rest. Used by one thread.
class StageHead {
 public:
  struct Options {
    // The context's backend computes the logits, its pool samples.
    StreamContext context;
    int32_t head_rows = 0;  // as of BackendOptions
    bool headless = false;  // of DecoderSpec: there are no logits
    Weights* weights = nullptr;
    // Whether it gives tokens and scores: of several ranks, only the leading
    // one. The others compute their part of its logits.
    bool answers = true;
    // See StageOptions. With an observer, the host gets all logits.
    std::function<void(SequenceId, int32_t position, std::span<const float>)>
        logits_observer;
  };
  // Pointers must outlive the head.
  explicit StageHead(Options options)
      : options_(std::move(options)),
        scratch_(options_.context.pool->num_threads()) {}

  // REQUIRES: the source of what it shares is here.
  void Admit(const SequenceAdmission& admission);
  // Keeps the tokens of a prefix, for samplers that count them.
  void Keep(const KeptPrefix& keep);
  // Forgets a sequence or a kept prefix.
  void Release(SequenceId sequence) {
    tokens_.erase(sequence);
    samplers_.erase(sequence);
    pools_.erase(sequence);
  }
  // Forgets all sequences.
  void Clear();

  // Begins a step, whose tokens, scores and pooled vectors go to `result`.
  void Begin(StepResult* result);
  // Returns how often a step's rows go through the head's sections.
  int Passes(const StepPlan& plan) const;
  // Takes the rows of a micro-batch that are to be sampled, scored or pooled.
  // `x`, [rows, hidden], is read by a computing call of the backend; the
  // results may be there only after Finish. `segments` are those of the batch.
  // kInvalidArgument: a sequence with a pooling is to be scored, or one without
  // is to be sampled or scored though the model has no head.
  absl::Status Add(const MicroBatch& batch,
                   std::span<const SegmentView> segments, const float* x);
  // Gives the results that are missing.
  absl::Status Finish();

 private:
  std::vector<int32_t> TokensOf(const SharedPrefix& prefix) const;
  // A row whose logits are wanted.
  struct Row {
    SequenceId sequence;
    int32_t position;  // that its logits predict
    const Sampler* sampler;
    int32_t target;  // the token to be scored; -1: sample
    size_t slot;     // of the result's scores or tokens
  };
  // Consecutive rows of final_rows_ that a pool takes.
  struct PooledRows {
    Pool* pool;
    size_t first, count;
  };
  // Takes the batch's rows that are pooled.
  absl::Status AddPooled(const MicroBatch& batch,
                         std::span<const SegmentView> segments, const float* x);
  // Has pools take the rows in pooled_row_of_x_.
  absl::Status FlushPooled(const float* x);
  int sections() const { return options_.context.packed->num_head_sections(); }
  // Returns a section as a unit of the weights.
  int Unit(int section) const {
    return options_.context.units
        ->first[options_.context.layers.size() + section];
  }
  // Acquires a section, and has others read ahead.
  absl::StatusOr<PackedView> Acquire(int section);
  // Shows the first section's packed unit, which stays acquired.
  absl::StatusOr<PackedView> First();
  // Passes what is in the head's input through all sections, and answers it.
  absl::Status Flush();
  // Passes by the sections that are not computed with.
  absl::Status PassBy();
  // Sets taken_.
  absl::Status TakeLogits();
  void Use(const Row& row, std::span<float> logits, int thread);
  void Use(const Row& row, const TokenSample& sample);

  const Options options_;
  absl::flat_hash_map<SequenceId, std::unique_ptr<Sampler>> samplers_;
  absl::flat_hash_map<SequenceId, Pool> pools_;
  // The tokens of sequences that are not pooled, and of kept prefixes.
  absl::flat_hash_map<SequenceId, std::vector<int32_t>> tokens_;
  std::vector<SamplerScratch> scratch_;  // per thread
  StepResult* result_ = nullptr;
  std::vector<Row> batch_rows_;
  std::vector<int32_t> row_of_x_;  // parallel
  std::vector<PooledRows> pooled_;
  std::vector<int32_t> pooled_row_of_x_;
  std::vector<float> final_rows_;         // [pooled_row_of_x_, hidden]
  std::vector<Row> pending_;              // in the head's input
  std::vector<Backend::LogitRow> taken_;  // parallel
  std::vector<int> on_host_;  // indices into taken_ of logits on the host
  std::optional<PackedView> first_;  // the first section, while it is acquired
};

}  // namespace sluice
