#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/kernels/backend.h"
#include "runtime/kernels/device_checks.h"
#include "runtime/memory/device.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/sample/sampler_scratch.h"

namespace sluice {

// A CPU backend that behaves as one with memory of its own does: its arithmetic
// is CpuBackend's, bit for bit, but its work space lies on Options::device, and
// a computing call whose weights, activations or pages do not is refused with
// kInternal, which names what was elsewhere. So a copy that the stage forgot
// can't go unnoticed on a machine without a GPU.
//
// Two things are the host's, as for any device: packing writes images into host
// memory, and TakeLogits gives logits there that it was not asked to pick from.
// It picks as the host does. Scratch of a thread (the query and the sums of one
// attention call) is neither's.
class DiscreteBackend : public Backend {
 public:
  // kInvalidArgument without a device.
  static absl::StatusOr<std::unique_ptr<Backend>> Create(
      const DecoderSpec& spec, const Options& options);

  size_t EmbeddingBytes() const override { return cpu_->EmbeddingBytes(); }
  size_t LayerBytes() const override { return cpu_->LayerBytes(); }
  int num_head_sections() const override { return cpu_->num_head_sections(); }
  size_t HeadBytes(int section) const override {
    return cpu_->HeadBytes(section);
  }
  size_t EmbeddingRowBytes() const override {
    return cpu_->EmbeddingRowBytes();
  }
  size_t EmbeddingTableBytes() const override {
    return cpu_->EmbeddingTableBytes();
  }
  std::string ImageKey() const override { return cpu_->ImageKey(); }
  absl::Status PackEmbedding(const TensorSource& source, LoadProgress progress,
                             const ImageWindow& to) override {
    return cpu_->PackEmbedding(source, progress, to);
  }
  absl::Status PackLayer(int layer, const TensorSource& source,
                         LoadProgress progress,
                         const ImageWindow& to) override {
    return cpu_->PackLayer(layer, source, progress, to);
  }
  absl::Status PackHead(int section, const TensorSource& source,
                        LoadProgress progress, const ImageWindow& to) override {
    return cpu_->PackHead(section, source, progress, to);
  }
  size_t ExpandedLayerBytes() const override {
    return cpu_->ExpandedLayerBytes();
  }
  absl::Status ExpandLayer(const ImageView& image, std::byte* out) override;
  const KvLayout& kv_layout() const override { return cpu_->kv_layout(); }
  absl::Status Embed(const ImageView& image, const BatchView& batch,
                     float* x) override;
  absl::Status ProjectQkv(int layer, const LayerImage& image,
                          const BatchView& batch, const float* x) override;
  absl::Status Attend(int layer, const BatchView& batch, int32_t first_segment,
                      int32_t count) override;
  absl::Status ProjectOut(int layer, const LayerImage& image,
                          const BatchView& batch, float* x) override;
  absl::Status Mlp(int layer, const LayerImage& image, const BatchView& batch,
                   float* x) override;
  AttentionRows attention_rows(int32_t slot) override {
    return cpu_->attention_rows(slot);
  }
  int32_t head_rows() const override { return cpu_->head_rows(); }
  absl::Status HeadInput(const ImageView& image,
                         std::span<const int32_t> rows_of_x, const float* x,
                         int32_t at) override;
  absl::Status HeadLogits(const ImageView& image, int section,
                          int32_t rows) override;
  absl::Status TakeLogits(std::span<LogitRow> rows) override;
  void ParallelFor(int num_tasks,
                   absl::FunctionRef<void(int, int)> body) override {
    for (int task = 0; task < num_tasks; ++task) body(task, 0);
  }

 private:
  DiscreteBackend(const DecoderSpec& spec, const Options& options)
      : checks_(options.device, spec.hidden_size),
        device_(options.device),
        scratch_(options.threads) {}
  // A layer's weights, and its activations.
  absl::Status CheckCall(const LayerImage& image, const BatchView& batch,
                         const float* x) const;

  const DeviceChecks checks_;
  Device* const device_;
  std::unique_ptr<Backend> cpu_;
  HostBuffer logits_;  // [head rows, vocab]; last stage
  struct Copy {
    std::span<const float> from;
    float* to;
  };
  std::vector<LogitRow> on_device_;      // where CpuBackend has them
  std::vector<Copy> copies_;             // of what the host wants
  std::vector<SamplerScratch> scratch_;  // per thread
};

}  // namespace sluice
