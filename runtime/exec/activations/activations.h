#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/exec/activations/activation_stager.h"
#include "runtime/exec/stage_work.h"
#include "runtime/exec/stream_context.h"
#include "runtime/exec/sweep_stats.h"
#include "runtime/memory/activation_buffer.h"

namespace sluice {

// The residual streams of a step's micro-batches, wherever they live between
// their turns (StepWork::turns): float32 [rows, hidden] each. Used by one
// thread.
class Activations {
 public:
  virtual ~Activations() = default;

  // Begins a step, which must stay as it is. Nothing is left of the one before.
  // kInvalidArgument: more micro-batches or rows than there is room for.
  virtual absl::Status BeginStep(StepWork* step) = 0;
  // Returns the stream whose turn it is, where it is computed, until its
  // release. Turns are taken in order; two may be held where Attention::Begin
  // defers. Begins to bring what comes next.
  virtual absl::StatusOr<float*> Acquire(size_t turn) = 0;
  // Goes on to bring what comes next, if it can without waiting.
  virtual void ReadAhead() {}
  // Ends the turn: begins to put the stream away, or, after its turn in the
  // head, forgets it.
  virtual absl::Status Release(size_t turn) = 0;
  // Ends a stream, which is not held: gives what it is now, in host memory.
  virtual absl::StatusOr<std::shared_ptr<ActivationBuffer>> Leave(size_t k) = 0;
  // Whether the stream of micro-batch `k` stays where it lay in other steps.
  virtual bool fixed(size_t k) const { return false; }
  // Forgets the step, whatever state it is in.
  // REQUIRES: the backend computes nothing.
  virtual void Reset() = 0;
  virtual StreamTotals totals() const { return {}; }

 protected:
  explicit Activations(const StreamContext& context);
  // Begin micro-batch k's stream, as the embedding of its tokens, as what the
  // stage before sent, for which they wait, or as what the leading rank has of
  // it: in a buffer of its own, or in host memory of the caller's, [rows,
  // hidden]. Called in the order of k, by all ranks at the same place.
  absl::StatusOr<std::shared_ptr<ActivationBuffer>> Enter(size_t k);
  absl::Status EnterAt(size_t k, float* x);
  // A buffer of k's size.
  std::shared_ptr<ActivationBuffer> Buffer(size_t k) const {
    return context_.buffers->Acquire(step_->batches[k].view.rows,
                                     context_.hidden_size);
  }

  const StreamContext context_;
  StepWork* step_ = nullptr;

  // Whether streams begin with an embedding, on the leading rank.
  bool embeds() const { return context_.layers.begin == 0; }
  // Whether these would not wait for the stage before, nor for other ranks.
  bool CanEnter(size_t k) const {
    return context_.streams == nullptr &&
           (step_->inputs == nullptr ||
            step_->inputs->ready(static_cast<int32_t>(k)));
  }

 private:
  bool leads() const;
  absl::Status Embed(const BatchView& view, float* x);
  // Gives other ranks the stream that the leading one has, at x on each.
  absl::Status Share(const BatchView& view, float* x);

  // All of a row is the leading rank's.
  std::vector<size_t> bounds_;
};

// Streams that live and are computed in host memory.
class ResidentActivations : public Activations {
 public:
  explicit ResidentActivations(const StreamContext& context)
      : Activations(context) {}
  absl::Status BeginStep(StepWork* step) override;
  absl::StatusOr<float*> Acquire(size_t turn) override;
  absl::Status Release(size_t turn) override;
  absl::StatusOr<std::shared_ptr<ActivationBuffer>> Leave(size_t k) override {
    return std::move(x_[k]);
  }
  void Reset() override { x_.clear(); }

 private:
  std::vector<std::shared_ptr<ActivationBuffer>> x_;  // by micro-batch
};

// Streams that are computed in host memory, with a share of them on disk
// between their turns.
class StagedActivations : public Activations {
 public:
  StagedActivations(const StreamContext& context,
                    std::unique_ptr<ActivationStager> stager)
      : Activations(context), stager_(std::move(stager)) {}
  absl::Status BeginStep(StepWork* step) override;
  absl::StatusOr<float*> Acquire(size_t turn) override;
  void ReadAhead() override { stager_->ReadAhead(); }
  // The stager puts a stream away when the next one's turn comes.
  absl::Status Release(size_t turn) override { return absl::OkStatus(); }
  absl::StatusOr<std::shared_ptr<ActivationBuffer>> Leave(size_t k) override;
  void Reset() override { stager_->Reset(); }
  StreamTotals totals() const override { return stager_->totals(); }

 private:
  const std::unique_ptr<ActivationStager> stager_;
  std::vector<int32_t> rows_;  // by micro-batch
};

}  // namespace sluice
