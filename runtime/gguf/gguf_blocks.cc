// The layouts of blocks are those of ggml (ggml-common.h, block_q4_0 and its
// kin). The loops are plain, and compiled for each instruction set.

#include "runtime/gguf/gguf_blocks.h"

#include <bit>
#include <cstring>

#include "common/float16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/gguf/gguf_blocks.cc"
#include "hwy/foreach_target.h"
// Highway's header must follow foreach_target.h:
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {

HWY_INLINE uint16_t Load16(const uint8_t* from) {
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return bits;
}
HWY_INLINE uint32_t Load32(const uint8_t* from) {
  uint32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return bits;
}
HWY_INLINE float Half(const uint8_t* from) {
  return Float16ToFloat(Load16(from));
}

// Each function makes a block's floats.

HWY_INLINE void Q40(const uint8_t* in, float* HWY_RESTRICT out) {
  const float d = Half(in);
  const uint8_t* const qs = in + 2;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((qs[i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((qs[i] >> 4) - 8);
  }
}

HWY_INLINE void Q41(const uint8_t* in, float* HWY_RESTRICT out) {
  const float d = Half(in), m = Half(in + 2);
  const uint8_t* const qs = in + 4;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(qs[i] & 15) + m;
    out[i + 16] = d * static_cast<float>(qs[i] >> 4) + m;
  }
}

HWY_INLINE void Q50(const uint8_t* in, float* HWY_RESTRICT out) {
  const float d = Half(in);
  const uint32_t high = Load32(in + 2);
  const uint8_t* const qs = in + 6;
  for (int i = 0; i < 16; ++i) {
    const int low = (qs[i] & 15) | static_cast<int>(high >> i & 1) << 4;
    const int up = (qs[i] >> 4) | static_cast<int>(high >> (i + 16) & 1) << 4;
    out[i] = d * static_cast<float>(low - 16);
    out[i + 16] = d * static_cast<float>(up - 16);
  }
}

HWY_INLINE void Q51(const uint8_t* in, float* HWY_RESTRICT out) {
  const float d = Half(in), m = Half(in + 2);
  const uint32_t high = Load32(in + 4);
  const uint8_t* const qs = in + 8;
  for (int i = 0; i < 16; ++i) {
    const int low = (qs[i] & 15) | static_cast<int>(high >> i & 1) << 4;
    const int up = (qs[i] >> 4) | static_cast<int>(high >> (i + 16) & 1) << 4;
    out[i] = d * static_cast<float>(low) + m;
    out[i + 16] = d * static_cast<float>(up) + m;
  }
}

HWY_INLINE void Q80(const uint8_t* in, float* HWY_RESTRICT out) {
  const float d = Half(in);
  for (int i = 0; i < 32; ++i) {
    out[i] = static_cast<float>(static_cast<int8_t>(in[2 + i])) * d;
  }
}

HWY_INLINE void Q2K(const uint8_t* in, float* HWY_RESTRICT out) {
  const uint8_t* const scales = in;
  const float d = Half(in + 80), least = Half(in + 82);
  for (int group = 0; group < 16; ++group) {
    const float scale = d * static_cast<float>(scales[group] & 15);
    const float minimum = least * static_cast<float>(scales[group] >> 4);
    const uint8_t* const qs = in + 16 + group / 8 * 32 + group % 2 * 16;
    const int shift = group % 8 / 2 * 2;
    for (int i = 0; i < 16; ++i) {
      out[16 * group + i] =
          scale * static_cast<float>(qs[i] >> shift & 3) - minimum;
    }
  }
}

HWY_INLINE void Q3K(const uint8_t* in, float* HWY_RESTRICT out) {
  const uint8_t* const scales = in + 96;
  const float d = Half(in + 108);
  for (int group = 0; group < 16; ++group) {
    const int low = scales[group % 8] >> (group / 8 * 4) & 15;
    const int high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    const uint8_t* const qs = in + 32 + group / 8 * 32 + group % 2 * 16;
    const uint8_t* const mask = in + group % 2 * 16;
    const int shift = group % 8 / 2 * 2;
    const int bit = group / 2;
    for (int i = 0; i < 16; ++i) {
      const int q = (qs[i] >> shift & 3) + (mask[i] >> bit & 1) * 4 - 4;
      out[16 * group + i] = scale * static_cast<float>(q);
    }
  }
}

// The scale and the minimum, of 6 bits each, of a group of 32.
struct Six {
  float scale, minimum;
};
HWY_INLINE Six SixBits(const uint8_t* packed, int group) {
  if (group < 4) {
    return {static_cast<float>(packed[group] & 63),
            static_cast<float>(packed[group + 4] & 63)};
  }
  return {
      static_cast<float>((packed[group + 4] & 15) | (packed[group - 4] >> 6)
                                                        << 4),
      static_cast<float>((packed[group + 4] >> 4) | (packed[group] >> 6) << 4)};
}

HWY_INLINE void Q4K(const uint8_t* in, float* HWY_RESTRICT out) {
  const float d = Half(in), least = Half(in + 2);
  for (int group = 0; group < 8; ++group) {
    const Six six = SixBits(in + 4, group);
    const float scale = d * six.scale, minimum = least * six.minimum;
    const uint8_t* const qs = in + 16 + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      out[32 * group + i] =
          scale * static_cast<float>(qs[i] >> shift & 15) - minimum;
    }
  }
}

HWY_INLINE void Q5K(const uint8_t* in, float* HWY_RESTRICT out) {
  const float d = Half(in), least = Half(in + 2);
  const uint8_t* const high = in + 16;
  for (int group = 0; group < 8; ++group) {
    const Six six = SixBits(in + 4, group);
    const float scale = d * six.scale, minimum = least * six.minimum;
    const uint8_t* const qs = in + 48 + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int q = (qs[i] >> shift & 15) | (high[i] >> group & 1) << 4;
      out[32 * group + i] = scale * static_cast<float>(q) - minimum;
    }
  }
}

HWY_INLINE void Q6K(const uint8_t* in, float* HWY_RESTRICT out) {
  const uint8_t* const scales = in + 192;
  const float d = Half(in + 208);
  for (int group = 0; group < 16; ++group) {
    const float scale =
        d * static_cast<float>(static_cast<int8_t>(scales[group]));
    const int half = group / 8, part = group % 8 / 2, side = group % 2 * 16;
    const uint8_t* const low = in + 64 * half + part % 2 * 32 + side;
    const uint8_t* const high = in + 128 + 32 * half + side;
    const int shift = part / 2 * 4;
    for (int i = 0; i < 16; ++i) {
      const int q = (low[i] >> shift & 15) | (high[i] >> (2 * part) & 3) << 4;
      out[16 * group + i] = scale * static_cast<float>(q - 32);
    }
  }
}

HWY_INLINE void FromTable(float d, const uint8_t* qs, const float* table,
                          float* HWY_RESTRICT out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = d * table[qs[i] & 15];
    out[i + 16] = d * table[qs[i] >> 4];
  }
}

HWY_INLINE void Iq4Nl(const uint8_t* in, float* HWY_RESTRICT out) {
  static constexpr float kValues[16] = {
      -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  FromTable(Half(in), in + 2, kValues, out);
}

// The values are twice those of E2M1, the scale is half of E8M0's.
HWY_INLINE void Mxfp4(const uint8_t* in, float* HWY_RESTRICT out) {
  static constexpr float kValues[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                        0, -1, -2, -3, -4, -6, -8, -12};
  const uint32_t e = in[0];
  const float d =
      std::bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  FromTable(d, in + 1, kValues, out);
}

HWY_INLINE void F32(const uint8_t* in, float* HWY_RESTRICT out) {
  std::memcpy(out, in, sizeof(float));
}
HWY_INLINE void F16(const uint8_t* in, float* HWY_RESTRICT out) {
  *out = Half(in);
}
HWY_INLINE void Bf16(const uint8_t* in, float* HWY_RESTRICT out) {
  *out = BFloat16ToFloat(Load16(in));
}

template <void (*kBlock)(const uint8_t*, float*), int kBytes, int kElements>
void Loop(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t i = 0; i < blocks; ++i) {
    kBlock(in + i * kBytes, out + i * kElements);
  }
}

void Dequantize(uint32_t type, const uint8_t* in, int64_t blocks, float* out) {
  switch (type) {
    case 0:
      return Loop<F32, 4, 1>(in, blocks, out);
    case 1:
      return Loop<F16, 2, 1>(in, blocks, out);
    case 2:
      return Loop<Q40, 18, 32>(in, blocks, out);
    case 3:
      return Loop<Q41, 20, 32>(in, blocks, out);
    case 6:
      return Loop<Q50, 22, 32>(in, blocks, out);
    case 7:
      return Loop<Q51, 24, 32>(in, blocks, out);
    case 8:
      return Loop<Q80, 34, 32>(in, blocks, out);
    case 10:
      return Loop<Q2K, 84, 256>(in, blocks, out);
    case 11:
      return Loop<Q3K, 110, 256>(in, blocks, out);
    case 12:
      return Loop<Q4K, 144, 256>(in, blocks, out);
    case 13:
      return Loop<Q5K, 176, 256>(in, blocks, out);
    case 14:
      return Loop<Q6K, 210, 256>(in, blocks, out);
    case 20:
      return Loop<Iq4Nl, 18, 32>(in, blocks, out);
    case 30:
      return Loop<Bf16, 2, 1>(in, blocks, out);
    case 39:
      return Loop<Mxfp4, 17, 32>(in, blocks, out);
    default:
      break;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(Dequantize);

void DequantizeGguf(const GgufType& type, const char* in, int64_t blocks,
                    float* out) {
  HWY_DYNAMIC_DISPATCH(Dequantize)
  (type.number, reinterpret_cast<const uint8_t*>(in), blocks, out);
}

}  // namespace sluice
#endif  // HWY_ONCE
