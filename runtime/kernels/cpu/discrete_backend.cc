#include "runtime/kernels/cpu/discrete_backend.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/status_macros.h"
#include "runtime/kernels/rotary_table.h"

namespace sluice {

absl::StatusOr<BackendParts> DiscreteBackend::Create(
    const DecoderSpec& spec, const BackendOptions& options) {
  if (options.device == nullptr) {
    return absl::InvalidArgumentError(
        "the discrete CPU backend needs a device for its memory");
  }
  SLUICE_RETURN_IF_ERROR(CheckRotaries(spec));
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

absl::Status DiscreteBackend::FinalRows(const PackedView& packed,
                                        std::span<const int32_t> rows_of_x,
                                        const float* x, float* out) {
  const std::span<float> space = logits_space();
  SLUICE_RETURN_IF_ERROR(checks().RoomForRow(space.size()));
  const size_t most = space.size() / hidden_;
  for (size_t begin = 0; begin < rows_of_x.size(); begin += most) {
    const auto rows =
        rows_of_x.subspan(begin, std::min(most, rows_of_x.size() - begin));
    SLUICE_RETURN_IF_ERROR(
        CpuBackend::FinalRows(packed, rows, x, space.data()));
    const size_t count = rows.size() * hidden_;
    IoCompletion done;
    done.Expect(1);
    device_->CopyOut(
        std::as_writable_bytes(std::span(out + begin * hidden_, count)),
        std::as_bytes(space.first(count)), &done, {"hidden states"});
    SLUICE_RETURN_IF_ERROR(done.Wait());
  }
  return absl::OkStatus();
}

}  // namespace sluice
