#include "runtime/quant/strip_codec.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"
#include "runtime/quant/scaled_strip.h"

namespace sluice {
namespace {

// Inputs whose codes lie together.
constexpr int32_t kTogether = 8;

// Stores kBits of each code, from bit `shift` on, of inputs that begin at
// `codes` [16][kMaxCodeBlock]: those of one column in as few bytes as hold
// them, the first input's lowest. Returns the end.
template <int kBits>
uint8_t* StorePlane(const uint8_t (*codes)[kMaxCodeBlock], int32_t input,
                    int shift, uint8_t* out) {
  constexpr uint64_t kBytes = 0x0101010101010101u;
  for (int32_t column = 0; column < kStripColumns; ++column) {
    // The codes of 8 inputs are the bytes of a word, and are pushed together.
    uint64_t word;
    std::memcpy(&word, codes[column] + input, sizeof word);
    word = word >> shift & kBytes * ((1 << kBits) - 1);
    word = (word | word >> (8 - kBits)) & 0x00ff00ff00ff00ffu;
    if (kBits <= 2) {
      word = (word | word >> (16 - 2 * kBits)) & 0x000000ff000000ffu;
    }
    if (kBits == 1) word |= word >> (32 - 4 * kBits);
    for (int i = 0; i < kBits; ++i) {
      out[i * kStripColumns + column] =
          static_cast<uint8_t>(word >> i * (64 / kBits));
    }
  }
  return out + kBits * kStripColumns;
}

// Stores whole bytes of two inputs side by side.
uint8_t* StoreWords(const uint8_t (*codes)[kMaxCodeBlock], int32_t input,
                    uint8_t* out) {
  for (int32_t i = 0; i < kTogether; i += 2) {
    for (int32_t column = 0; column < kStripColumns; ++column) {
      std::memcpy(out, codes[column] + input + i, 2);
      out += 2;
    }
  }
  return out;
}

// Whether the scales of a block, and what they multiply, are finite numbers.
bool IsFinite(const CodeFormat& format, const uint16_t* halves,
              const uint8_t* bytes) {
  constexpr uint16_t kExponent = 0x7c00;  // of float16
  constexpr int kMostPower = 248;         // of MXFP4: 2^120
  if (format.kind == CodeKind::kMxFp4) return bytes[0] <= kMostPower;
  return std::all_of(halves, halves + format.halves, [](uint16_t half) {
    return (half & kExponent) != kExponent;
  });
}

}  // namespace

absl::Status EncodeStrip(const CodeFormat& format, const std::byte* rows,
                         int32_t count, int32_t k, std::byte* out,
                         const std::byte* groups) {
  if (format.scaled != nullptr) {
    return EncodeScaledStrip(format, rows, count, k, groups, out);
  }
  const size_t row_bytes = format.row_bytes(k);
  uint8_t codes[kStripColumns][kMaxCodeBlock] = {};
  uint16_t halves[kStripColumns][kMaxCodeHalves] = {};
  uint8_t bytes[kStripColumns][kMaxCodeBytes] = {};
  auto* next = reinterpret_cast<uint8_t*>(out);
  for (int32_t block = 0; block < k / format.block; ++block) {
    for (int32_t column = 0; column < count; ++column) {
      format.split(rows + column * row_bytes + block * format.block_bytes(),
                   codes[column], halves[column], bytes[column]);
      if (!IsFinite(format, halves[column], bytes[column])) {
        return InvalidArgument("row ", column, " of the ", count,
                               " has a scale that is no number");
      }
    }
    for (int half = 0; half < format.halves; ++half) {
      for (int32_t column = 0; column < kStripColumns; ++column) {
        std::memcpy(next, &halves[column][half], 2);
        next += 2;
      }
    }
    for (int byte = 0; byte < format.bytes; ++byte) {
      for (int32_t column = 0; column < kStripColumns; ++column) {
        *next++ = bytes[column][byte];
      }
    }
    for (int32_t input = 0; input < format.block; input += kTogether) {
      switch (format.bits) {
        case 2:
        case 3:
          next = StorePlane<2>(codes, input, 0, next);
          if (format.bits == 3) next = StorePlane<1>(codes, input, 2, next);
          break;
        case 4:
        case 5:
        case 6:
          next = StorePlane<4>(codes, input, 0, next);
          if (format.bits == 5) next = StorePlane<1>(codes, input, 4, next);
          if (format.bits == 6) next = StorePlane<2>(codes, input, 4, next);
          break;
        default:
          next = StoreWords(codes, input, next);
      }
    }
  }
  return absl::OkStatus();
}

void ClearPadding(int32_t n, int32_t k, DType dtype, const PanelOrder& order,
                  void* out) {
  const size_t element = dtype == DType::kFloat32 ? 4 : 2;
  const size_t block = element * order.block * order.padded_k;
  const size_t used = element * order.block * k;
  auto* next = static_cast<std::byte*>(out);
  for (int32_t column = 0; column < n; column += order.block) {
    const size_t from = n - column < order.block ? 0 : std::min(used, block);
    std::memset(next + from, 0, block - from);
    next += block;
  }
}

}  // namespace sluice
