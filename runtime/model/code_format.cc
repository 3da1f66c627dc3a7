#include "runtime/model/code_format.h"

#include <cstring>

namespace sluice {
namespace {

const uint8_t* Bytes(const std::byte* raw) {
  return reinterpret_cast<const uint8_t*>(raw);
}

// Codes of 4 bits: of 2 * half inputs, the first half lie in the lower halves
// of bytes.
void SplitNibbles(const uint8_t* from, int half, uint8_t* codes) {
  for (int i = 0; i < half; ++i) {
    codes[i] = from[i] & 15;
    codes[i + half] = from[i] >> 4;
  }
}

// Adds fifth bits: those of block_q5_0 and block_q5_1.
void AddFifthBits(const uint8_t* from, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) {
    codes[i] |= static_cast<uint8_t>((from[i / 8] >> i % 8 & 1) << 4);
  }
}

// Blocks of 32 with a scale, and a minimum if there are two halves.
template <int kHalves, bool kFifth>
void SplitSmall(const std::byte* raw, uint8_t* codes, uint16_t* halves,
                uint8_t*) {
  std::memcpy(halves, raw, 2 * kHalves);
  const uint8_t* const bits = Bytes(raw) + 2 * kHalves;
  SplitNibbles(bits + (kFifth ? 4 : 0), 16, codes);
  if (kFifth) AddFifthBits(bits, codes);
}

// Signed codes, made unsigned.
void SplitQ8(const std::byte* raw, uint8_t* codes, uint16_t* halves, uint8_t*) {
  std::memcpy(halves, raw, 2);
  for (int i = 0; i < 32; ++i) codes[i] = Bytes(raw)[2 + i] ^ 0x80;
}

void SplitMxFp4(const std::byte* raw, uint8_t* codes, uint16_t*,
                uint8_t* bytes) {
  bytes[0] = Bytes(raw)[0];
  SplitNibbles(Bytes(raw) + 1, 16, codes);
}

// Codes of 2 bits: 4 times 32 inputs have their bits in 32 bytes.
void SplitPairs(const uint8_t* from, uint8_t* codes) {
  for (int part = 0; part < kMaxCodeBlock / 32; ++part) {
    for (int i = 0; i < 32; ++i) {
      codes[32 * part + i] = from[part / 4 * 32 + i] >> part % 4 * 2 & 3;
    }
  }
}

void SplitQ2K(const std::byte* raw, uint8_t* codes, uint16_t* halves,
              uint8_t* bytes) {
  std::memcpy(bytes, raw, 16);
  SplitPairs(Bytes(raw) + 16, codes);
  std::memcpy(halves, raw + 80, 4);
}

void SplitQ3K(const std::byte* raw, uint8_t* codes, uint16_t* halves,
              uint8_t* bytes) {
  const uint8_t* const high = Bytes(raw);
  SplitPairs(high + 32, codes);
  for (int bit = 0; bit < 8; ++bit) {
    for (int i = 0; i < 32; ++i) {
      codes[32 * bit + i] |= static_cast<uint8_t>((high[i] >> bit & 1) << 2);
    }
  }
  std::memcpy(bytes, raw + 96, 12);
  std::memcpy(halves, raw + 108, 2);
}

// Codes of 4 bits, 64 at a time.
void SplitQ4K(const std::byte* raw, uint8_t* codes, uint16_t* halves,
              uint8_t* bytes) {
  std::memcpy(halves, raw, 4);
  std::memcpy(bytes, raw + 4, 12);
  for (int i = 0; i < 4; ++i) {
    SplitNibbles(Bytes(raw) + 16 + 32 * i, 32, codes + 64 * i);
  }
}

void SplitQ5K(const std::byte* raw, uint8_t* codes, uint16_t* halves,
              uint8_t* bytes) {
  std::memcpy(halves, raw, 4);
  std::memcpy(bytes, raw + 4, 12);
  const uint8_t* const high = Bytes(raw) + 16;
  for (int i = 0; i < 4; ++i) {
    SplitNibbles(high + 32 + 32 * i, 32, codes + 64 * i);
  }
  for (int bit = 0; bit < 8; ++bit) {
    for (int i = 0; i < 32; ++i) {
      codes[32 * bit + i] |= static_cast<uint8_t>((high[i] >> bit & 1) << 4);
    }
  }
}

void SplitQ6K(const std::byte* raw, uint8_t* codes, uint16_t* halves,
              uint8_t* bytes) {
  for (int part = 0; part < 2; ++part) {
    const uint8_t* const low = Bytes(raw) + 64 * part;
    const uint8_t* const high = Bytes(raw) + 128 + 32 * part;
    uint8_t* const to = codes + 128 * part;
    SplitNibbles(low, 64, to);
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int i = 0; i < 32; ++i) {
        to[32 * quarter + i] |=
            static_cast<uint8_t>((high[i] >> 2 * quarter & 3) << 4);
      }
    }
  }
  std::memcpy(bytes, raw + 192, 16);
  std::memcpy(halves, raw + 208, 2);
}

constexpr CodeFormat kFormats[] = {
    {CodeKind::kQ4_0, "Q4_0", 4, 32, 32, 1, 0, &SplitSmall<1, false>},
    {CodeKind::kQ4_1, "Q4_1", 4, 32, 32, 2, 0, &SplitSmall<2, false>},
    {CodeKind::kQ5_0, "Q5_0", 5, 32, 32, 1, 0, &SplitSmall<1, true>},
    {CodeKind::kQ5_1, "Q5_1", 5, 32, 32, 2, 0, &SplitSmall<2, true>},
    {CodeKind::kQ8_0, "Q8_0", 8, 32, 32, 1, 0, &SplitQ8},
    {CodeKind::kQ2_K, "Q2_K", 2, 256, 16, 2, 16, &SplitQ2K},
    {CodeKind::kQ3_K, "Q3_K", 3, 256, 16, 1, 12, &SplitQ3K},
    {CodeKind::kQ4_K, "Q4_K", 4, 256, 32, 2, 12, &SplitQ4K},
    {CodeKind::kQ5_K, "Q5_K", 5, 256, 32, 2, 12, &SplitQ5K},
    {CodeKind::kQ6_K, "Q6_K", 6, 256, 16, 1, 16, &SplitQ6K},
    {CodeKind::kIq4Nl, "IQ4_NL", 4, 32, 32, 1, 0, &SplitSmall<1, false>},
    {CodeKind::kMxFp4, "MXFP4", 4, 32, 32, 0, 1, &SplitMxFp4},
};

}  // namespace

std::span<const CodeFormat> CodeFormats() { return kFormats; }

const CodeFormat* FindCodeFormat(absl::string_view name) {
  for (const CodeFormat& format : kFormats) {
    if (format.name == name) return &format;
  }
  for (const CodeFormat& format : ScaledFormats()) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

size_t CodeFormat::row_bytes(int64_t k) const {
  if (scaled == nullptr) return static_cast<size_t>(k / block) * block_bytes();
  const size_t zero = scaled->zero_bits > 0 ? 1 : 0;
  return static_cast<size_t>(k) * bits / 8 +
         scaled->groups(k) * (scaled->scale_bytes() + zero) +
         (scaled->any_order ? k : 0);
}

size_t CodeFormat::strip_bytes(int64_t k) const {
  if (scaled == nullptr) return kStripColumns * row_bytes(k);
  const size_t scales =
      scaled->scale_bytes() * (scaled->shared ? 1 : kStripColumns);
  const size_t zeros = size_t{kStripColumns} / 8 * scaled->zero_bits;
  return static_cast<size_t>(k) * kStripColumns * bits / 8 +
         scaled->groups(k) * (scales + zeros);
}

}  // namespace sluice
