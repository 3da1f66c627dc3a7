#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace sluice {

// Bytes [begin, end) of a packed unit that is being made, in zeroed memory: a
// packed unit is packed window by window where memory has no room for the
// whole. `begin` and the address are multiples of 4096.
struct PackedWindow {
  std::byte* data = nullptr;
  size_t begin = 0;
  size_t end = 0;

  static PackedWindow Whole(std::byte* packed, size_t bytes) {
    return {packed, 0, bytes};
  }
  size_t bytes() const { return end - begin; }
  bool Holds(size_t offset, size_t size) const {
    return offset >= begin && offset + size <= end;
  }
  bool Touches(size_t offset, size_t size) const {
    return offset < end && begin < offset + size;
  }
  // Returns the address of a byte of the packed unit that it holds.
  std::byte* At(size_t offset) const { return data + (offset - begin); }
};

// Called while weights are packed, on the packing thread, with the bytes done
// since the last call, counted as they lie in the packed unit. Returns an error
// to stop.
using LoadProgress = absl::FunctionRef<absl::Status(uint64_t bytes)>;

}  // namespace sluice
