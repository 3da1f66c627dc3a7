#include "runtime/exec/activations/activations.h"

#include <cstring>
#include <utility>

#include "common/status_macros.h"
#include "runtime/collective/collective.h"
#include "runtime/exec/timed.h"
#include "runtime/exec/weights/embedding_store.h"
#include "runtime/kernels/backend.h"

namespace sluice {

Activations::Activations(const StreamContext& context) : context_(context) {
  if (context.streams == nullptr) return;
  const size_t row_bytes = context.hidden_size * sizeof(float);
  bounds_.assign(context.streams->ranks() + 1, row_bytes);
  bounds_[0] = 0;
}

bool Activations::leads() const {
  return context_.streams == nullptr || context_.streams->rank() == 0;
}

absl::StatusOr<std::shared_ptr<ActivationBuffer>> Activations::Enter(size_t k) {
  const BatchView& view = step_->batches[k].view;
  std::shared_ptr<ActivationBuffer> x;
  if (leads() && !embeds()) {
    SLUICE_ASSIGN_OR_RETURN(x, step_->TakeInput(k, context_.hidden_size));
  } else {
    x = Buffer(k);
    if (leads()) SLUICE_RETURN_IF_ERROR(Embed(view, x->data()));
  }
  SLUICE_RETURN_IF_ERROR(Share(view, x->data()));
  return x;
}

absl::Status Activations::EnterAt(size_t k, float* x) {
  const BatchView& view = step_->batches[k].view;
  if (leads() && embeds()) {
    SLUICE_RETURN_IF_ERROR(Embed(view, x));
  } else if (leads()) {
    SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<ActivationBuffer> sent,
                            step_->TakeInput(k, context_.hidden_size));
    std::memcpy(x, sent->data(), sent->bytes());
  }
  return Share(view, x);
}

absl::Status Activations::Share(const BatchView& view, float* x) {
  if (context_.streams == nullptr) return absl::OkStatus();
  auto* const rows = reinterpret_cast<std::byte*>(x);
  return context_.streams->Gather({.from = rows,
                                   .from_stride = bounds_.back(),
                                   .to = rows,
                                   .to_stride = bounds_.back(),
                                   .rows = view.rows,
                                   .bounds = bounds_},
                                  *context_.pool);
}

absl::Status Activations::Embed(const BatchView& view, float* x) {
  SLUICE_ASSIGN_OR_RETURN(const EmbeddingStore::Rows embedding,
                          context_.embedding->Gather(view.tokens));
  BatchView batch = view;
  batch.tokens = embedding.tokens;
  const Timed timed(&context_.stats->projection_seconds, context_.row, "embed");
  return context_.host_backend->Embed(embedding.packed, batch, x);
}

absl::Status ResidentActivations::BeginStep(StepWork* step) {
  step_ = step;
  x_.resize(step->num_batches);
  return absl::OkStatus();
}

absl::StatusOr<float*> ResidentActivations::Acquire(size_t turn) {
  const int32_t k = step_->turns[turn];
  if (step_->begins(turn)) {
    SLUICE_ASSIGN_OR_RETURN(x_[k], Enter(k));
  }
  return x_[k]->data();
}

absl::Status ResidentActivations::Release(size_t turn) {
  if (step_->in_head(turn)) x_[step_->turns[turn]].reset();
  return absl::OkStatus();
}

absl::Status StagedActivations::BeginStep(StepWork* step) {
  step_ = step;
  rows_.clear();
  for (size_t k = 0; k < step->num_batches; ++k) {
    rows_.push_back(step->batches[k].view.rows);
  }
  return stager_->BeginStep(step->turns, rows_);
}

absl::StatusOr<float*> StagedActivations::Acquire(size_t turn) {
  const int32_t k = step_->turns[turn];
  SLUICE_ASSIGN_OR_RETURN(float* const x, stager_->Acquire(k));
  stager_->ReadAhead();
  if (step_->begins(turn)) SLUICE_RETURN_IF_ERROR(EnterAt(k, x));
  return x;
}

absl::StatusOr<std::shared_ptr<ActivationBuffer>> StagedActivations::Leave(
    size_t k) {
  SLUICE_ASSIGN_OR_RETURN(const float* const x,
                          stager_->Acquire(static_cast<int32_t>(k)));
  std::shared_ptr<ActivationBuffer> out = Buffer(k);
  std::memcpy(out->data(), x, out->bytes());
  return out;
}

}  // namespace sluice
