#include "runtime/kernels/cpu/discrete_backend.h"

#include <algorithm>
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
  if (options.layers.end == spec.num_layers) {
    SLUICE_ASSIGN_OR_RETURN(
        self->logits_,
        HostBuffer::Create("logits", CpuSpace(spec, options).logits,
                           options.budget, options.device));
  }
  parts.backend = std::move(self);
  return parts;
}

absl::Status DiscreteBackend::CheckCall(const LayerImage& image,
                                        const BatchView& batch,
                                        const float* x) const {
  SLUICE_RETURN_IF_ERROR(checks_.Image("weights", image.view,
                                       image.expanded
                                           ? weights().ExpandedLayerBytes()
                                           : weights().LayerBytes()));
  return checks_.Rows(x, batch.rows);
}

absl::Status DiscreteBackend::ExpandLayer(const ImageView& image,
                                          std::byte* out) {
  SLUICE_RETURN_IF_ERROR(
      checks_.Image("weights", image, weights().LayerBytes()));
  SLUICE_RETURN_IF_ERROR(
      checks_.Check("an expanded layer", out, weights().ExpandedLayerBytes()));
  return CpuBackend::ExpandLayer(image, out);
}

absl::Status DiscreteBackend::Embed(const ImageView& image,
                                    const BatchView& batch, float* x) {
  SLUICE_RETURN_IF_ERROR(
      checks_.Image("the embedding", image, weights().EmbeddingBytes()));
  SLUICE_RETURN_IF_ERROR(checks_.Rows(x, batch.rows));
  return CpuBackend::Embed(image, batch, x);
}

absl::Status DiscreteBackend::ProjectQkv(int layer, const LayerImage& image,
                                         const BatchView& batch,
                                         const float* x) {
  SLUICE_RETURN_IF_ERROR(CheckCall(image, batch, x));
  return CpuBackend::ProjectQkv(layer, image, batch, x);
}

absl::Status DiscreteBackend::Attend(int layer, const BatchView& batch,
                                     int32_t first_segment, int32_t count) {
  SLUICE_RETURN_IF_ERROR(
      checks_.Pages(kv_layout(), batch, first_segment, count));
  return CpuBackend::Attend(layer, batch, first_segment, count);
}

absl::Status DiscreteBackend::ProjectOut(int layer, const LayerImage& image,
                                         const BatchView& batch, float* x) {
  SLUICE_RETURN_IF_ERROR(CheckCall(image, batch, x));
  return CpuBackend::ProjectOut(layer, image, batch, x);
}

absl::Status DiscreteBackend::Mlp(int layer, const LayerImage& image,
                                  const BatchView& batch, float* x) {
  SLUICE_RETURN_IF_ERROR(CheckCall(image, batch, x));
  return CpuBackend::Mlp(layer, image, batch, x);
}

absl::Status DiscreteBackend::HeadInput(const ImageView& image,
                                        std::span<const int32_t> rows_of_x,
                                        const float* x, int32_t at) {
  if (rows_of_x.empty()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(
      checks_.Image("the head", image, weights().HeadBytes(0)));
  SLUICE_RETURN_IF_ERROR(checks_.Rows(
      x, *std::max_element(rows_of_x.begin(), rows_of_x.end()) + 1));
  return CpuBackend::HeadInput(image, rows_of_x, x, at);
}

absl::Status DiscreteBackend::HeadLogits(const ImageView& image, int section,
                                         int32_t rows) {
  SLUICE_RETURN_IF_ERROR(
      checks_.Image("the head", image, weights().HeadBytes(section)));
  return CpuBackend::HeadLogits(image, section, rows);
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
    // Neighbours go together.
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
    row.pick = PickToken(*row.request, on_device_[i].logits, scratch_[thread]);
  });
  return done.Wait();
}

}  // namespace sluice
