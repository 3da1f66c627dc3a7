#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "runtime/kernels/backend_parts.h"
#include "runtime/kv/batch_view.h"

namespace sluice {

// A backend that computes as late as it may: what it is told is done by the
// next Finish(), or when logits are taken. Until then its results are all
// ones (NaN, as floats), and what it is to read must stay as it was, or
// Finish() is kInternal and says what was overwritten. So a stage that copies
// what is not yet computed, or gives away memory that is still read, gives
// wrong answers or fails, every time.
//
// Around a backend whose memory is a CpuDevice's.
class LateBackend : public Backend {
 public:
  // Puts one around the backend of `parts`, which then has it.
  static LateBackend* Wrap(BackendParts& parts, int64_t hidden_size) {
    auto* const late = new LateBackend(parts, hidden_size);
    parts.backend.reset(late);
    return late;
  }

  // Calls of Finish() that found something to compute.
  int waits() const { return waits_; }
  // Makes one of the computing calls fail when it is told, once: the next one
  // if `in` is 0, or so many later.
  void FailCall(int in) { fail_in_ = in; }
  // Computing calls that were done.
  int computed() const { return computed_; }

  AttentionRows attention_rows(int32_t slot) override {
    return inner_->attention_rows(slot);
  }
  absl::Status DequantizeLayer(int layer, const PackedView& packed,
                               std::byte* out) override;
  absl::Status Embed(const PackedView& packed, const BatchView& batch,
                     float* x) override;
  absl::Status ProjectQkv(int layer, const PackedLayer& packed,
                          const BatchView& batch, const float* x) override;
  absl::Status Attend(int layer, const BatchView& batch, int32_t first_segment,
                      int32_t count) override;
  absl::Status ProjectOut(int layer, const PackedLayer& packed,
                          const BatchView& batch, float* x) override;
  absl::Status Mlp(int layer, const PackedLayer& packed, const BatchView& batch,
                   float* x) override;
  absl::Status Route(int layer, const PackedLayer& packed,
                     const BatchView& batch, const float* x,
                     int32_t at) override;
  absl::StatusOr<std::span<const int32_t>> RowsOfExperts() override;
  absl::Status RunExpert(int layer, int expert,
                         const PackedView& packed) override;
  absl::Status AddExperts(int layer, const BatchView& batch, int32_t at,
                          float* x) override;
  absl::Status FinalRows(const PackedView& packed,
                         std::span<const int32_t> rows_of_x, const float* x,
                         float* out) override;
  absl::Status HeadInput(const PackedView& packed,
                         std::span<const int32_t> rows_of_x, const float* x,
                         int32_t at) override;
  absl::Status HeadLogits(const PackedView& packed, int section,
                          int32_t rows) override;
  absl::Status TakeLogits(std::span<LogitRow> rows) override;
  absl::Status Finish() override;

 private:
  // A batch that stays as it was when it was shown.
  struct Batch;
  // Memory that is to be read or written, from an address on.
  struct Range {
    std::string what;
    std::vector<std::byte> saved;  // what it held
    bool poisoned = false;         // results will be there
  };

  LateBackend(BackendParts& parts, int64_t hidden_size)
      : inner_(std::move(parts.backend)),
        weights_(*parts.weights),
        page_bytes_(parts.kv_layout.layer_page_bytes()),
        hidden_size_(hidden_size) {}
  static std::shared_ptr<Batch> Keep(const BatchView& batch);
  // Keeps only some of the batch's segments.
  static std::shared_ptr<Batch> Keep(const BatchView& batch,
                                     int32_t first_segment, int32_t count);
  Range& Read(absl::string_view what, const void* data, size_t bytes);
  void ReadPacked(absl::string_view what, const PackedView& packed,
                  size_t bytes);
  void ReadLayer(int layer, const PackedLayer& packed);
  void Write(absl::string_view what, const void* data, size_t bytes);
  // Returns the bytes of so many rows of the residual stream.
  size_t RowBytes(int64_t rows) const {
    return static_cast<size_t>(rows * hidden_size_) * sizeof(float);
  }
  absl::Status Later(std::function<absl::Status()> call);
  absl::Status ComputeAll();

  const std::unique_ptr<Backend> inner_;
  const PackedWeights& weights_;
  const size_t page_bytes_;  // of a layer's page of KV
  const int64_t hidden_size_;
  std::vector<std::function<absl::Status()>> calls_;
  std::map<std::byte*, Range> ranges_;
  int waits_ = 0;
  int computed_ = 0;
  int fail_in_ = -1;
};

}  // namespace sluice
