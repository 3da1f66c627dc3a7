#include "runtime/kernels/cpu/discrete_backend.h"

#include <algorithm>

#include "common/status_macros.h"
#include "runtime/kernels/cpu/cpu_backend.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<Backend>> DiscreteBackend::Create(
    const DecoderSpec& spec, const Options& options) {
  if (options.device == nullptr) {
    return absl::InvalidArgumentError(
        "the discrete CPU backend needs a device for its memory");
  }
  std::unique_ptr<DiscreteBackend> self(new DiscreteBackend(spec, options));
  SLUICE_ASSIGN_OR_RETURN(self->cpu_, CpuBackend::Create(spec, options));
  if (options.layers.end == spec.num_layers) {
    SLUICE_ASSIGN_OR_RETURN(
        self->logits_,
        HostBuffer::Create("logits", CpuSpace(spec, options).logits,
                           options.budget, options.device));
  }
  return self;
}

absl::Status DiscreteBackend::CheckCall(const LayerImage& image,
                                        const BatchView& batch,
                                        const float* x) const {
  SLUICE_RETURN_IF_ERROR(
      checks_.Image("weights", image.view,
                    image.expanded ? ExpandedLayerBytes() : LayerBytes()));
  return checks_.Rows(x, batch.rows);
}

absl::Status DiscreteBackend::ExpandLayer(const ImageView& image,
                                          std::byte* out) {
  SLUICE_RETURN_IF_ERROR(checks_.Image("weights", image, LayerBytes()));
  SLUICE_RETURN_IF_ERROR(
      checks_.Check("an expanded layer", out, ExpandedLayerBytes()));
  return cpu_->ExpandLayer(image, out);
}

absl::Status DiscreteBackend::Embed(const ImageView& image,
                                    const BatchView& batch, float* x) {
  SLUICE_RETURN_IF_ERROR(
      checks_.Image("the embedding", image, EmbeddingBytes()));
  SLUICE_RETURN_IF_ERROR(checks_.Rows(x, batch.rows));
  return cpu_->Embed(image, batch, x);
}

absl::Status DiscreteBackend::ProjectQkv(int layer, const LayerImage& image,
                                         const BatchView& batch,
                                         const float* x) {
  SLUICE_RETURN_IF_ERROR(CheckCall(image, batch, x));
  return cpu_->ProjectQkv(layer, image, batch, x);
}

absl::Status DiscreteBackend::Attend(int layer, const BatchView& batch,
                                     int32_t first_segment, int32_t count) {
  SLUICE_RETURN_IF_ERROR(
      checks_.Pages(kv_layout(), batch, first_segment, count));
  return cpu_->Attend(layer, batch, first_segment, count);
}

absl::Status DiscreteBackend::ProjectOut(int layer, const LayerImage& image,
                                         const BatchView& batch, float* x) {
  SLUICE_RETURN_IF_ERROR(CheckCall(image, batch, x));
  return cpu_->ProjectOut(layer, image, batch, x);
}

absl::Status DiscreteBackend::Mlp(int layer, const LayerImage& image,
                                  const BatchView& batch, float* x) {
  SLUICE_RETURN_IF_ERROR(CheckCall(image, batch, x));
  return cpu_->Mlp(layer, image, batch, x);
}

absl::Status DiscreteBackend::HeadInput(const ImageView& image,
                                        std::span<const int32_t> rows_of_x,
                                        const float* x, int32_t at) {
  if (rows_of_x.empty()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(checks_.Image("the head", image, HeadBytes(0)));
  SLUICE_RETURN_IF_ERROR(checks_.Rows(
      x, *std::max_element(rows_of_x.begin(), rows_of_x.end()) + 1));
  return cpu_->HeadInput(image, rows_of_x, x, at);
}

absl::Status DiscreteBackend::HeadLogits(const ImageView& image, int section,
                                         int32_t rows) {
  SLUICE_RETURN_IF_ERROR(checks_.Image("the head", image, HeadBytes(section)));
  return cpu_->HeadLogits(image, section, rows);
}

absl::Status DiscreteBackend::TakeLogits(std::span<LogitRow> rows) {
  on_device_.assign(rows.size(), LogitRow());
  SLUICE_RETURN_IF_ERROR(cpu_->TakeLogits(on_device_));
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
  cpu_->ParallelFor(static_cast<int>(rows.size()), [&](int i, int thread) {
    LogitRow& row = rows[i];
    if (!row.request.has_value()) return;
    row.logits = {};
    row.pick = PickToken(*row.request, on_device_[i].logits, scratch_[thread]);
  });
  return done.Wait();
}

}  // namespace sluice
