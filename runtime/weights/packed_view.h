#pragma once

#include <cstddef>

namespace sluice {

// The places of the bytes of a packed unit: those below `split` in one piece of
// memory, the rest in another. Nothing that is read as a whole (a panel of a
// matrix, a vector) straddles the split. Owns nothing; cheap to copy.
struct PackedView {
  // Address of packed offset 0; valid for offsets < split.
  const std::byte* low = nullptr;
  // Address of packed offset `high_offset`; valid for offsets >= split.
  const std::byte* high = nullptr;
  size_t split = 0;
  size_t high_offset = 0;

  // A packed unit in one piece.
  static PackedView Whole(const void* packed) {
    return {nullptr, static_cast<const std::byte*>(packed), 0, 0};
  }

  // Returns the packed unit from a part on, whose offset becomes 0.
  PackedView From(size_t begin) const {
    PackedView part = *this;
    if (low != nullptr) part.low += begin;
    part.split = split > begin ? split - begin : 0;
    part.high_offset = high_offset > begin ? high_offset - begin : 0;
    if (begin > high_offset) part.high += begin - high_offset;
    return part;
  }

  const std::byte* At(size_t offset) const {
    return offset < split ? low + offset : high + (offset - high_offset);
  }
};

}  // namespace sluice
