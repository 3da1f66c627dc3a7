#include "runtime/quant/decode_kernels.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/quant/decode_kernels.cc"
#include "hwy/foreach_target.h"
// Highway's header must follow foreach_target.h:
#include "hwy/highway.h"
#include "runtime/quant/columns-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Inputs whose parameters are converted together.
constexpr int32_t kChunk = 64;
constexpr int32_t kMaxGroups =
    (PanelCodec::kMaxColumns + kQuantGroup - 1) / kQuantGroup;

// Decodes codes of one group.
template <Form kForm, int kBits>
class Group {
 public:
  HWY_INLINE Group(float scale_even, float min_even, float scale_odd,
                   float min_odd)
      : scale_even_(hn::Set(DF(), scale_even)),
        min_even_(hn::Set(DF(), min_even)),
        scale_odd_(hn::Set(DF(), scale_odd)),
        min_odd_(hn::Set(DF(), min_odd)) {
    if constexpr (kBits == 4 && kLookUp) {
      const VF codes = hn::Iota(DF(), 0.0f);
      table_ = Convert<kForm>(hn::MulAdd(codes, scale_even_, min_even_),
                              hn::MulAdd(codes, scale_odd_, min_odd_));
    }
  }

  // Decodes the codes of a vector of columns.
  HWY_INLINE Decoded<kForm> operator()(const uint8_t* codes) const {
    const DU du;
    VU even, odd;
    if constexpr (kBits == 4) {
      const VU both = hn::PromoteTo(du, hn::LoadU(DU8(), codes));
      even = hn::And(both, hn::Set(du, 15));
      odd = hn::ShiftRight<4>(both);
    } else {
      const auto* words = reinterpret_cast<const uint16_t*>(codes);
      const VU both = hn::PromoteTo(du, hn::LoadU(DU16(), words));
      even = hn::And(both, hn::Set(du, 255));
      odd = hn::ShiftRight<8>(both);
    }
    if constexpr (kBits == 4 && kLookUp) {
      return {hn::TableLookupLanes(table_.even, Indices(even)),
              hn::TableLookupLanes(table_.odd, Indices(odd))};
    } else {
      const VF e = hn::ConvertTo(DF(), hn::BitCast(DI(), even));
      const VF o = hn::ConvertTo(DF(), hn::BitCast(DI(), odd));
      return Convert<kForm>(hn::MulAdd(e, scale_even_, min_even_),
                            hn::MulAdd(o, scale_odd_, min_odd_));
    }
  }

 private:
  HWY_INLINE static auto Indices(VU codes) {
    if constexpr (kForm == Form::kFloat) {
      return hn::IndicesFromVec(DF(), codes);
    } else {
      return hn::IndicesFromVec(DU(), codes);
    }
  }

  VF scale_even_, min_even_, scale_odd_, min_odd_;
  Decoded<kForm> table_;
};

template <Form kForm, int kBits>
HWY_INLINE void DecodeBlocks(const PanelCodec& codec, float unit,
                             const GroupParams* params, const uint8_t* codes,
                             void* out) {
  using T = std::conditional_t<kForm == Form::kFloat, float, uint16_t>;
  constexpr size_t kPer = kForm == Form::kBf16Pairs ? 2 : 1;
  constexpr size_t kCodeBytes = kBits == 4 ? 1 : 2;
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const PanelOrder& order = codec.order();
  const size_t row = static_cast<size_t>(order.block) * kPer;  // elements
  const int32_t pairs = codec.pairs();
  HWY_ALIGN float scales[kMaxGroups][kChunk];
  HWY_ALIGN float mins[kMaxGroups][kChunk];
  for (int32_t block = 0; block < codec.blocks(); ++block) {
    T* next = static_cast<T*>(out) +
              static_cast<size_t>(block) * order.padded_k * order.block;
    T* const end = next + static_cast<size_t>(order.padded_k) * order.block;
    const uint8_t* code = codes + codec.block_codes_offset(block);
    const int32_t first = block * order.block;
    const int32_t last = std::min(codec.n(), first + order.block);
    const size_t columns = codec.block_columns(block);
    const int32_t first_group = first / kQuantGroup;
    const int32_t groups = (last - 1) / kQuantGroup + 1 - first_group;
    for (int32_t chunk = 0; chunk < pairs; chunk += kChunk / 2) {
      const int32_t chunk_pairs = std::min(kChunk / 2, pairs - chunk);
      for (int32_t g = 0; g < groups; ++g) {
        const GroupParams* from =
            params + static_cast<size_t>(first_group + g) * 2 * pairs +
            2 * chunk;
        for (int32_t i = 0; i < 2 * chunk_pairs;
             i += static_cast<int32_t>(lanes)) {
          HWY_ALIGN GroupParams some[kLanes] = {};
          std::memcpy(some, from + i,
                      sizeof(GroupParams) *
                          std::min<size_t>(lanes, 2 * chunk_pairs - i));
          const VU both =
              hn::Load(DU(), reinterpret_cast<const uint32_t*>(some));
          const DI di;
          const auto halves = [&](VU bits) HWY_ATTR {
            const auto narrow = hn::DemoteTo(DU16(), hn::BitCast(di, bits));
            return hn::Mul(hn::PromoteTo(d, hn::BitCast(DF16(), narrow)),
                           hn::Set(d, unit));
          };
          hn::StoreU(halves(hn::And(both, hn::Set(DU(), 0xffff))), d,
                     scales[g] + i);
          hn::StoreU(halves(hn::ShiftRight<16>(both)), d, mins[g] + i);
        }
      }
      for (int32_t pair = 0; pair < chunk_pairs; ++pair) {
        T* const even = next;
        // kBf16Pairs has both in one row. A plain order may have no row for the
        // input that an odd k lacks.
        T* const odd = kForm == Form::kBf16Pairs || next + row == end
                           ? nullptr
                           : next + row;
        for (int32_t g = 0; g < groups; ++g) {
          const Group<kForm, kBits> group(
              scales[g][2 * pair], mins[g][2 * pair], scales[g][2 * pair + 1],
              mins[g][2 * pair + 1]);
          const int32_t start =
              std::max(first, (first_group + g) * kQuantGroup) - first;
          const int32_t stop =
              std::min(last, (first_group + g + 1) * kQuantGroup) - first;
          size_t j = start;
          for (; j + lanes <= static_cast<size_t>(stop); j += lanes) {
            StoreColumns<kForm>(group(code + j * kCodeBytes), even + j * kPer,
                                odd == nullptr ? nullptr : odd + j);
          }
          if (j < static_cast<size_t>(stop)) {
            StoreSome<kForm>(group(code + j * kCodeBytes), stop - j,
                             even + j * kPer,
                             odd == nullptr ? nullptr : odd + j);
          }
        }
        const size_t used = static_cast<size_t>(last - first) * kPer;
        if (used < row) {
          std::memset(even + used, 0, (row - used) * sizeof(T));
          if (odd != nullptr) {
            std::memset(odd + used, 0, (row - used) * sizeof(T));
          }
        }
        next += odd == nullptr ? row : 2 * row;
        code += columns * kCodeBytes;
      }
    }
    std::memset(next, 0, (end - next) * sizeof(T));
  }
}

template <int kBits>
HWY_INLINE void DecodeBits(const PanelCodec& codec, float unit,
                           const GroupParams* params, const uint8_t* codes,
                           void* out) {
  if (codec.dtype() == DType::kFloat32) {
    DecodeBlocks<Form::kFloat, kBits>(codec, unit, params, codes, out);
  } else if (codec.order().interleave == 1) {
    DecodeBlocks<Form::kBf16, kBits>(codec, unit, params, codes, out);
  } else {
    DecodeBlocks<Form::kBf16Pairs, kBits>(codec, unit, params, codes, out);
  }
}

void DecodePanelImpl(const PanelCodec& codec, float unit,
                     const GroupParams* params, const uint8_t* codes,
                     void* out) {
  if (codec.bits() == 4) {
    DecodeBits<4>(codec, unit, params, codes, out);
  } else {
    DecodeBits<8>(codec, unit, params, codes, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(DecodePanelImpl);

void DecodePanel(const PanelCodec& codec, float unit, const GroupParams* params,
                 const uint8_t* codes, void* out) {
  HWY_DYNAMIC_DISPATCH(DecodePanelImpl)(codec, unit, params, codes, out);
}

}  // namespace sluice
#endif
