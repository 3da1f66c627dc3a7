#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "common/step_plan.h"
#include "common/types.h"
#include "runtime/exec/step_inputs.h"
#include "runtime/exec/sweep_stats.h"
#include "runtime/kv/kv_groups.h"
#include "runtime/memory/activation_buffer.h"

namespace sluice {

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
  using Progress =
      std::function<void(uint64_t bytes_done, uint64_t bytes_total)>;

  virtual ~StageExecutor() = default;

  // The pages that sequences may take in all, of page_tokens() positions. n
  // positions of a sequence take ceil(n / page_tokens) pages: with kv_by_need()
  // those computed so far, else its max_positions from its admission on (see
  // PageTables).
  virtual int64_t kv_pages() const = 0;
  virtual bool kv_by_need() const = 0;
  // Whether sequences can share the pages of their first positions.
  virtual bool kv_shared() const { return false; }
  // The pages that its windows' layers have beside those, if they are others.
  // A sequence takes as many as of those, but never more than pages_each.
  virtual WindowRoom kv_window() const { return {}; }
  virtual int64_t kv_pages_used() const = 0;
  // The bytes of the KV cache in host memory that were in use so far, since the
  // load or Reset. The rest is room, which takes no memory until a sequence
  // needs it (but where it is pinned for a device).
  virtual uint64_t kv_host_used_bytes() const { return 0; }
  virtual int32_t page_tokens() const = 0;
  virtual uint64_t weight_bytes() const = 0;
  // These say where things were placed, and what the sweeps did since the load.
  virtual const RealisedPlacement& placement() const = 0;
  virtual SweepStats stats() const = 0;
  virtual bool is_first() const = 0;
  virtual bool is_last() const = 0;

  // Takes a micro-batch's output, to be sent on while the next one is computed.
  // Not called on the last stage.
  using Emit = std::function<absl::Status(
      int32_t micro_batch, std::shared_ptr<ActivationBuffer> hidden)>;

  // Runs one sweep. `inputs` is null on the first stage, which embeds the
  // plan's tokens; elsewhere all of them are taken, each when its micro-batch
  // is first computed. On the last stage `result` gets sampled tokens and
  // scores; elsewhere it is left alone. Input buffers may be modified and
  // emitted. kInvalidArgument: a plan that does not fit (unknown sequence,
  // wrong position, token id out of the vocabulary, wrong shape of hidden, more
  // tokens than max_step_tokens); kResourceExhausted: no page left. After an
  // error the executor must be reset.
  virtual absl::Status RunStep(const StepPlan& plan, StepInputs* inputs,
                               const Emit& emit, StepResult* result) = 0;

  // Returns memory in which input is best received: it goes to the device
  // without a detour. May outlive the executor; null: anywhere.
  virtual std::shared_ptr<ActivationPool> input_buffers() { return nullptr; }

  // Forgets all sequences and frees their pages: for a new plan epoch.
  virtual void Reset() = 0;
};

}  // namespace sluice
