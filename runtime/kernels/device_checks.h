#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "runtime/kv/batch_view.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/memory/device.h"
#include "runtime/weights/packed_view.h"

namespace sluice {

// Checks whether what a backend with memory of its own is to compute with lies
// there. Each check is kInternal if not, and names what was elsewhere: a copy
// that the stage forgot. Without a device all is well.
class DeviceChecks {
 public:
  DeviceChecks(const Device* device, int64_t hidden_size)
      : device_(device), hidden_size_(hidden_size) {}

  absl::Status Check(absl::string_view what, const void* data,
                     size_t bytes) const;
  // Checks a packed unit of so many bytes.
  absl::Status Packed(absl::string_view what, const PackedView& packed,
                      size_t bytes) const;
  // Checks rows [0, rows) of a residual stream.
  absl::Status Rows(const float* x, int64_t rows) const;
  // Checks rows of a residual stream, at least one, that make a head's input.
  absl::Status HeadRows(const float* x, std::span<const int32_t> rows) const;
  // Checks that so many floats are room for a row of hidden states at least.
  absl::Status RoomForRow(size_t floats) const;
  // Checks all pages of the segments.
  absl::Status Pages(const KvLayout& layout, const BatchView& batch,
                     int32_t first_segment, int32_t count) const;

 private:
  const Device* const device_;
  const int64_t hidden_size_;
};

}  // namespace sluice
