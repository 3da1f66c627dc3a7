#pragma once

#include <cstddef>

namespace sluice {

// The places of the bytes of a layer's image: those below `split` in one piece
// of memory, the rest in another. Nothing that is read as a whole (a panel of a
// matrix, a vector) straddles the split. Owns nothing; cheap to copy.
struct ImageView {
  // Address of image offset 0; valid for offsets < split.
  const std::byte* low = nullptr;
  // Address of image offset `high_offset`; valid for offsets >= split.
  const std::byte* high = nullptr;
  size_t split = 0;
  size_t high_offset = 0;

  // An image in one piece.
  static ImageView Whole(const void* image) {
    return {nullptr, static_cast<const std::byte*>(image), 0, 0};
  }

  const std::byte* At(size_t offset) const {
    return offset < split ? low + offset : high + (offset - high_offset);
  }
};

}  // namespace sluice
