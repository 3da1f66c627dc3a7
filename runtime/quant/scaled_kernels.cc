#include <cstring>

#include "common/float16.h"
#include "runtime/quant/scaled_strip.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/quant/scaled_kernels.cc"
#include "hwy/foreach_target.h"
// Highway's header must follow foreach_target.h:
#include "hwy/highway.h"
#include "runtime/quant/columns-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Code = ScaledCodes::Code;

// Of a group, by column.
struct ScaledGroup {
  HWY_ALIGN float scale[kStripColumns];
  HWY_ALIGN float offset[kStripColumns];  // the code that stands for 0
};

// Reads the numbers of a group; returns where its codes begin.
HWY_INLINE const uint8_t* ReadGroup(const ScaledCodes& format,
                                    const uint8_t* from, ScaledGroup* to) {
  const DType stored = format.stored();
  if (format.shared) {
    float scale;
    std::memcpy(&scale, from, sizeof scale);
    for (float& each : to->scale) each = scale;
    from += sizeof scale;
  } else if (stored == DType::kFloat32) {
    std::memcpy(to->scale, from, sizeof to->scale);
    from += sizeof to->scale;
  } else {
    uint16_t bits[kStripColumns];
    std::memcpy(bits, from, sizeof bits);
    from += sizeof bits;
    for (int c = 0; c < kStripColumns; ++c) {
      to->scale[c] = stored == DType::kBFloat16 ? BFloat16ToFloat(bits[c])
                                                : Float16ToFloat(bits[c]);
    }
  }
  const int middle = format.code == Code::kInt4 ? 8 : 128;
  for (int c = 0; c < kStripColumns; ++c) {
    int offset = middle;
    if (format.zero_bits == 8) {
      offset += static_cast<int8_t>(from[c]);
    } else if (format.zero_bits == 4) {
      offset = from[c / 2] >> c % 2 * 4 & 15;
    }
    to->offset[c] = static_cast<float>(offset);
  }
  return from + kStripColumns / 8 * format.zero_bits;
}

// Whether float16 is converted by an instruction.
#define SLUICE_HAS_FLOAT16 (HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86)

// The numbers of two codes of E4M3 that are not NaN.
struct TwoNumbers {
  VF even, odd;
};

// Returns those of words of two codes, the even one in the lower half.
HWY_INLINE TwoNumbers FromE4M3(hn::Vec<DU16> both) {
  const DF d;
#if SLUICE_HAS_FLOAT16
  // As a float16 with these bits, a number is 2^-8 of what it is.
  const DU16 du;
  const auto number = [&](hn::Vec<DU16> bits) HWY_ATTR {
    return hn::Mul(hn::PromoteTo(d, hn::BitCast(DF16(), bits)),
                   hn::Set(d, 256.0f));
  };
  const auto sign = hn::Set(du, 0x8000);
  const auto rest = hn::Set(du, 0x3f80);
  return {number(hn::Or(hn::And(hn::ShiftLeft<8>(both), sign),
                        hn::And(hn::ShiftLeft<7>(both), rest))),
          number(hn::Or(hn::And(both, sign),
                        hn::And(hn::ShiftRight<1>(both), rest)))};
#else
  const DU du;
  const DI di;
  const auto number = [&](VU code) HWY_ATTR {
    const VU sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(du, 0x80)));
    const VU magnitude = hn::And(code, hn::Set(du, 0x7f));
    const VU normal =
        hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(du, 120u << 23));
    const VF subnormal = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)),
                                 hn::Set(d, 0x1p-9f));
    const auto small = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 8));
    const VU of = hn::IfThenElse(hn::RebindMask(du, small),
                                 hn::BitCast(du, subnormal), normal);
    return hn::BitCast(d, hn::Or(of, sign));
  };
  const VU words = hn::PromoteTo(du, both);
  return {number(hn::And(words, hn::Set(du, 255))),
          number(hn::ShiftRight<8>(words))};
#endif
}

// Returns the nearest number of float16, ties to even, as FloatToFloat16.
HWY_INLINE VF RoundFloat16(VF v) {
  const DF d;
#if SLUICE_HAS_FLOAT16
  return hn::PromoteTo(d, hn::DemoteTo(DF16(), v));
#else
  const DU du;
  const VU bits = hn::BitCast(du, v);
  const VU sign = hn::And(bits, hn::Set(du, 0x80000000u));
  const VU magnitude = hn::Xor(bits, sign);
  const VU odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
  const VU rounded =
      hn::And(hn::Add(magnitude, hn::Add(odd, hn::Set(du, 0xfff))),
              hn::Set(du, 0xffffe000u));
  const DI di;
  const auto infinite =
      hn::Gt(hn::BitCast(di, rounded), hn::Set(di, 0x477fe000));
  const VU normal = hn::IfThenElse(hn::RebindMask(du, infinite),
                                   hn::Set(du, 0x7f800000u), rounded);
  // A subnormal is a multiple of 2^-24, the ulp of 0.5.
  const VF half = hn::Set(d, 0.5f);
  const VF subnormal = hn::Sub(hn::Add(hn::BitCast(d, magnitude), half), half);
  const auto small =
      hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 0x38800000));
  const VU nearest = hn::IfThenElse(hn::RebindMask(du, small),
                                    hn::BitCast(du, subnormal), normal);
  return hn::BitCast(d, hn::Or(nearest, sign));
#endif
}

// Rounds a product to the type of its scale, if storing does not.
template <DType kRounding, Form kForm>
HWY_INLINE VF Rounded(VF v) {
  if constexpr (kRounding == DType::kFloat16) {
    return RoundFloat16(v);
  } else if constexpr (kRounding == DType::kBFloat16 && kForm == Form::kFloat) {
    return hn::BitCast(DF(), hn::And(RoundBf16(v), hn::Set(DU(), 0xffff0000u)));
  } else {
    return v;
  }
}

// Decodes inputs that lie one after the other: those of one group, or, if
// `order` is not null, each of the group that it names.
template <Form kForm, Code kCode, DType kRounding, bool kAnyOrder, typename T>
HWY_INLINE void DecodeInputs(const uint8_t* codes, int32_t inputs,
                             const ScaledGroup* groups, const uint8_t* order,
                             const Place& place, T* out) {
  const DF d;
  const DU du;
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kBytes = kCode == Code::kInt4 ? 1 : 2;  // of two codes
  for (size_t c = 0; c < static_cast<size_t>(place.count); c += lanes) {
    const VF scale = hn::Load(d, groups->scale + c);
    const VF offset = hn::Load(d, groups->offset + c);
    const size_t left = place.count - c;
    const uint8_t* from = codes + kBytes * c;
    T* to = out + c * place.stride;
    const auto value = [&](VF number, int32_t input) HWY_ATTR {
      VF by = scale;
      VF less = offset;
      if constexpr (kAnyOrder) {
        by = hn::Load(d, groups[order[input]].scale + c);
        less = hn::Load(d, groups[order[input]].offset + c);
      }
      if constexpr (kCode != Code::kE4M3) number = hn::Sub(number, less);
      return Rounded<kRounding, kForm>(hn::Mul(number, by));
    };
    const auto integers = [&](VU even, VU odd) HWY_ATTR {
      return TwoNumbers{hn::ConvertTo(d, hn::BitCast(DI(), even)),
                        hn::ConvertTo(d, hn::BitCast(DI(), odd))};
    };
    for (int32_t i = 0; i < inputs; i += 2) {
      TwoNumbers of;
      if constexpr (kCode == Code::kInt4) {
        const VU both = hn::PromoteTo(du, hn::LoadU(DU8(), from));
        of = integers(hn::And(both, hn::Set(du, 15)), hn::ShiftRight<4>(both));
      } else {
        const auto words =
            hn::LoadU(DU16(), reinterpret_cast<const uint16_t*>(from));
        if constexpr (kCode == Code::kE4M3) {
          of = FromE4M3(words);
        } else {
          const VU both = hn::PromoteTo(du, words);
          of = integers(hn::And(both, hn::Set(du, 255)),
                        hn::ShiftRight<8>(both));
        }
      }
      const VF even = value(of.even, i);
      const VF odd = value(of.odd, i + 1);
      T* const next = kForm == Form::kBf16Pairs ? nullptr : to + place.row;
      if (left >= lanes) {
        StoreColumns<kForm>(Convert<kForm>(even, odd), to, next);
      } else {
        StoreSome<kForm>(Convert<kForm>(even, odd), left, to, next);
      }
      to += kForm == Form::kBf16Pairs ? place.row : 2 * place.row;
      from += kBytes * kStripColumns;
    }
  }
}

template <Form kForm, Code kCode, DType kRounding>
void DecodeScaledGroups(const ScaledCodes& format, const uint8_t* strip,
                        const uint8_t* order, int32_t k, const Place& place,
                        void* out) {
  using T = std::conditional_t<kForm == Form::kFloat, float, uint16_t>;
  T* to = static_cast<T*>(out) + place.first;
  const int32_t groups = format.groups(k);
  if (format.any_order) {
    if constexpr (kCode != Code::kE4M3) {
      ScaledGroup all[kMaxOrderedGroups];
      for (int32_t g = 0; g < groups; ++g) {
        strip = ReadGroup(format, strip, &all[g]);
      }
      DecodeInputs<kForm, kCode, kRounding, true>(strip, k, all, order, place,
                                                  to);
    }
    return;
  }
  const int32_t inputs = k / groups;
  const size_t rows = kForm == Form::kBf16Pairs ? inputs / 2 : inputs;
  ScaledGroup group;
  for (int32_t g = 0; g < groups; ++g) {
    strip = ReadGroup(format, strip, &group);
    DecodeInputs<kForm, kCode, kRounding, false>(strip, inputs, &group, nullptr,
                                                 place, to);
    strip += static_cast<size_t>(inputs) * kStripColumns / 2 *
             (kCode == Code::kInt4 ? 1 : 2);
    to += rows * place.row;
  }
}

template <Form kForm, Code kCode>
void DecodeScaledRounding(const ScaledCodes& format, const uint8_t* strip,
                          const uint8_t* order, int32_t k, const Place& place,
                          void* out) {
  switch (format.scale) {
    case DType::kFloat32:
      return DecodeScaledGroups<kForm, kCode, DType::kFloat32>(
          format, strip, order, k, place, out);
    case DType::kBFloat16:
      return DecodeScaledGroups<kForm, kCode, DType::kBFloat16>(
          format, strip, order, k, place, out);
    case DType::kFloat16:
      return DecodeScaledGroups<kForm, kCode, DType::kFloat16>(
          format, strip, order, k, place, out);
  }
}

template <Form kForm>
void DecodeScaledForm(const ScaledCodes& format, const uint8_t* strip,
                      const uint8_t* order, int32_t k, const Place& place,
                      void* out) {
  switch (format.code) {
    case Code::kE4M3:
      return DecodeScaledRounding<kForm, Code::kE4M3>(format, strip, order, k,
                                                      place, out);
    case Code::kInt4:
      return DecodeScaledRounding<kForm, Code::kInt4>(format, strip, order, k,
                                                      place, out);
    case Code::kInt8:
      return DecodeScaledRounding<kForm, Code::kInt8>(format, strip, order, k,
                                                      place, out);
  }
}

void DecodeScaledImpl(const ScaledCodes& format, const std::byte* strip,
                      const std::byte* groups, int32_t k, DType dtype,
                      const PanelOrder& order, int32_t column, int32_t count,
                      void* out) {
  const auto* const from = reinterpret_cast<const uint8_t*>(strip);
  const auto* const group_of = reinterpret_cast<const uint8_t*>(groups);
  InPanel(dtype, order, column, count,
          [&]<Form kForm>(const Place& place) HWY_ATTR {
            DecodeScaledForm<kForm>(format, from, group_of, k, place, out);
          });
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(DecodeScaledImpl);

void DecodeScaledStrip(const CodeFormat& format, const std::byte* strip,
                       const std::byte* groups, int32_t k, DType dtype,
                       const PanelOrder& order, int32_t column, int32_t count,
                       void* out) {
  HWY_DYNAMIC_DISPATCH(DecodeScaledImpl)
  (*format.scaled, strip, groups, k, dtype, order, column, count, out);
}

}  // namespace sluice
#endif
