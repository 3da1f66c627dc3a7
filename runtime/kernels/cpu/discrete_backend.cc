#include "runtime/kernels/cpu/discrete_backend.h"

#include <memory>
#include <utility>

#include "common/status_macros.h"

namespace sluice {

absl::StatusOr<BackendParts> DiscreteBackend::Create(
    const DecoderSpec& spec, const BackendOptions& options) {
  if (options.device == nullptr) {
    return absl::InvalidArgumentError(
        "the discrete CPU backend needs a device for its memory");
  }
  GemmEngine* gemm = nullptr;
  SLUICE_ASSIGN_OR_RETURN(BackendParts parts, MakeParts(spec, options, &gemm));
  std::unique_ptr<DiscreteBackend> self(
      new DiscreteBackend(spec, options, parts, gemm));
  SLUICE_RETURN_IF_ERROR(self->Initialize());
  if (options.layers.end == spec.num_layers && options.tensor.leads()) {
    SLUICE_ASSIGN_OR_RETURN(
        self->logits_,
        HostBuffer::Create("logits", CpuSpace(spec, options).logits,
                           options.budget, options.device));
  }
  parts.backend = std::move(self);
  return parts;
}

absl::Status DiscreteBackend::TakeLogits(std::span<LogitRow> rows) {
  on_device_.assign(rows.size(), LogitRow());
  SLUICE_RETURN_IF_ERROR(CpuBackend::TakeLogits(on_device_));
  float* to = logits_.as<float>();
  copies_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].request.has_value()) continue;
    const std::span<const float> from = on_device_[i].logits;
    rows[i].logits = {to, from.size()};
    to += from.size();
    // Neighbouring rows are copied together.
    if (!copies_.empty() &&
        copies_.back().from.data() + copies_.back().from.size() ==
            from.data()) {
      Copy& copy = copies_.back();
      copy.from = {copy.from.data(), copy.from.size() + from.size()};
    } else {
      copies_.push_back({from, rows[i].logits.data()});
    }
  }
  IoCompletion done;
  done.Expect(static_cast<int>(copies_.size()));
  for (const Copy& copy : copies_) {
    device_->CopyOut(
        std::as_writable_bytes(std::span(copy.to, copy.from.size())),
        std::as_bytes(copy.from), &done, {"logits"});
  }
  pool().ParallelFor(static_cast<int>(rows.size()), [&](int i, int thread) {
    LogitRow& row = rows[i];
    if (!row.request.has_value()) return;
    row.logits = {};
    row.sample =
        SampleToken(*row.request, on_device_[i].logits, scratch_[thread]);
  });
  return done.Wait();
}

}  // namespace sluice
