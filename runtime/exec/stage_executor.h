#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/policy.h"
#include "common/step_plan.h"
#include "common/threads/work_marks.h"
#include "common/types.h"
#include "runtime/exec/sweep_stats.h"
#include "runtime/kernels/device_choice.h"
#include "runtime/memory/activation_buffer.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/model/model_dir.h"
#include "runtime/trace/trace.h"

namespace sluice {

class Device;
struct BackendParts;

// The part of a model that a stage plays, and how.
struct StageShare {
  // [0, n) contains the embedding, [n, num_layers) the head.
  LayerRange layers;
  Policy policy;
  int32_t max_model_len = 0;  // positions per sequence
  // Over all blocks in flight; bounds the KV cache that is worth having.
  int32_t max_sequences = 0;
  friend bool operator==(const StageShare&, const StageShare&) = default;
};

// What a stage has of its machine. All pointers must outlive it.
struct StageResources {
  int32_t compute_threads = 1;  // the calling thread included
  std::vector<int> cores;       // one for each compute thread, or empty
  DeviceChoice device;
  // With a device that has memory of its own; else null.
  MemoryBudget* device_budget = nullptr;
  MemoryBudget* host_budget = nullptr;
  // For data on disk: both or none.
  MemoryBudget* disk_budget = nullptr;
  std::string disk_dir;
  // Random weights in place of the model's: for measuring.
  bool dummy_weights = false;
  Tracer* tracer = nullptr;  // may be null
};

// One worker's share of a model, loaded and ready to run steps: weights, KV
// pages, sequences, and on the last stage samplers. Confined to one thread, but
// for Load's progress callback (same thread) and `cancelled`.
//
// Float32 results are batch-invariant, bit for bit: a sequence's activations
// and logits do not depend on what else is in the micro-batch, on how its
// prompt was cut into chunks, on the number of stages, or on whether tokens
// were prefilled or decoded. Recovery and refilling rely on it.
class StageExecutor {
 public:
  struct Options : StageShare, StageResources {
    // Gets what loading and steps have done, piece by piece: in a long step it
    // goes up all the time. May be null; must outlive the executor.
    WorkMarks* marks = nullptr;
    // Tests only: sees each row of logits before sampling. [vocab]; the
    // position is that of the last input token.
    std::function<void(SequenceId, int32_t position, std::span<const float>)>
        logits_observer;
    // Tests only: stands between the stage and what computes for it. The device
    // is null where the backend has no memory of its own.
    std::function<void(BackendParts&, Device*)> wrap_backend;
    absl::Status Validate(const DecoderSpec& spec) const;
  };

  using Progress =
      std::function<void(uint64_t bytes_done, uint64_t bytes_total)>;

  // Checks all tensors of the stage, charges the budget, loads and packs the
  // weights. kResourceExhausted names what does not fit; kCancelled when
  // `cancelled` became true; tensor errors as in TensorSource.
  static absl::StatusOr<std::unique_ptr<StageExecutor>> Load(
      const ModelDir& model, const Options& options, const Progress& progress,
      const std::atomic<bool>* cancelled);
  virtual ~StageExecutor() = default;

  // What sequences may take in all: pages of page_tokens() positions. n
  // positions of a sequence take ceil(n / page_tokens) pages: with kv_by_need()
  // those computed so far, else its max_tokens from its admission on (see
  // PageTables).
  virtual int64_t kv_pages() const = 0;
  virtual bool kv_by_need() const = 0;
  virtual int64_t kv_pages_used() const = 0;
  // Of the KV cache in host memory, what was in use so far, since the load or
  // Reset. The rest is room, which takes no memory until a sequence needs it
  // (but where it is pinned for a device).
  virtual uint64_t kv_host_used_bytes() const { return 0; }
  virtual int32_t page_tokens() const = 0;
  virtual uint64_t weight_bytes() const = 0;
  // Where things were placed, and what the sweeps did since the load.
  virtual const RealisedPlacement& placement() const = 0;
  virtual SweepStats stats() const = 0;
  virtual bool is_first() const = 0;
  virtual bool is_last() const = 0;

  // A micro-batch's output, ready to be sent on while the next one is computed.
  // Not called on the last stage.
  using Emit = std::function<absl::Status(
      int32_t micro_batch, std::shared_ptr<ActivationBuffer> hidden)>;

  // Runs one sweep. `hidden[k]` is micro-batch k's input, [tokens, hidden];
  // empty on the first stage, which embeds the plan's tokens. On the last stage
  // `result` gets sampled tokens and scores; elsewhere it is left alone. Input
  // buffers may be modified and emitted. kInvalidArgument: a plan that does not
  // fit (unknown sequence, wrong position, token id out of the vocabulary,
  // wrong shape of hidden, more tokens than max_step_tokens);
  // kResourceExhausted: no page left. After an error the executor must be
  // reset.
  virtual absl::Status RunStep(
      const StepPlan& plan, std::span<std::shared_ptr<ActivationBuffer>> hidden,
      const Emit& emit, StepResult* result) = 0;

  // Where input is best received: memory that goes to the device without a
  // detour. May outlive the executor; null: anywhere.
  virtual std::shared_ptr<ActivationPool> input_buffers() { return nullptr; }

  // Forgets all sequences and frees their pages: for a new plan epoch.
  virtual void Reset() = 0;
};

}  // namespace sluice
