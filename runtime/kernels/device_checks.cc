#include "runtime/kernels/device_checks.h"

#include <algorithm>

#include "common/status_macros.h"

namespace sluice {

absl::Status DeviceChecks::Check(absl::string_view what, const void* data,
                                 size_t bytes) const {
  if (device_ == nullptr || device_->Contains(data, bytes)) {
    return absl::OkStatus();
  }
  return Internal("the device was to compute with ", what, " (", bytes,
                  " bytes) outside its memory");
}

absl::Status DeviceChecks::Packed(absl::string_view what,
                                  const PackedView& packed,
                                  size_t bytes) const {
  if (packed.split > 0) {
    SLUICE_RETURN_IF_ERROR(
        Check(what, packed.low, std::min(packed.split, bytes)));
  }
  if (packed.split >= bytes) return absl::OkStatus();
  return Check(what, packed.high + (packed.split - packed.high_offset),
               bytes - packed.split);
}

absl::Status DeviceChecks::Rows(const float* x, int64_t rows) const {
  return Check("activations", x,
               static_cast<size_t>(rows * hidden_size_) * sizeof(float));
}

absl::Status DeviceChecks::HeadRows(const float* x,
                                    std::span<const int32_t> rows) const {
  return Rows(x, *std::max_element(rows.begin(), rows.end()) + 1);
}

absl::Status DeviceChecks::RoomForRow(size_t floats) const {
  if (floats >= static_cast<size_t>(hidden_size_)) return absl::OkStatus();
  return Internal("the space for logits has ", floats,
                  " floats, no room for a row of ", hidden_size_,
                  " hidden states");
}

absl::Status DeviceChecks::Pages(const KvLayout& layout, const BatchView& batch,
                                 int32_t first_segment, int32_t count) const {
  if (device_ == nullptr) return absl::OkStatus();
  const size_t page_bytes = layout.layer_page_bytes();
  for (const SegmentView& segment :
       batch.segments.subspan(first_segment, count)) {
    if (segment.pages.empty()) continue;
    const auto [min, max] =
        std::minmax_element(segment.pages.begin(), segment.pages.end());
    SLUICE_RETURN_IF_ERROR(Check("a KV page", segment.kv + *min * page_bytes,
                                 (int64_t{1} + *max - *min) * page_bytes));
  }
  return absl::OkStatus();
}

}  // namespace sluice
