#include "runtime/quant/group_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/status/status.h"
#include "common/float16.h"
#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/quant/group_codec.cc"
#include "hwy/foreach_target.h"
// Highway's header must follow foreach_target.h:
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Each lane is a group, so there are no sums across lanes.
using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
using DU = hn::Rebind<uint32_t, DF>;
using DI = hn::Rebind<int32_t, DF>;
using DU8 = hn::Rebind<uint8_t, DF>;
constexpr size_t kLanes = 16;  // the maximum

// Returns x / y, or 0 where y is not positive.
HWY_INLINE VF DivideOrZero(VF x, VF y) {
  const DF d;
  const auto ok = hn::Gt(y, hn::Zero(d));
  return hn::IfThenElseZero(ok,
                            hn::Div(x, hn::IfThenElse(ok, y, hn::Set(d, 1))));
}

// Below its smallest normal number, float16's values are multiples of 2^-24.
constexpr float kMinNormal = 0x1p-14f;
constexpr float kSubnormalSteps = 0x1p24f;

// Rounds to the nearest float16.
HWY_INLINE VF ToFloat16(VF x) {
  const DF d;
  const DU du;
  x = hn::Max(hn::Set(d, -kMaxFloat16), hn::Min(x, hn::Set(d, kMaxFloat16)));
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 1));
  const auto sum = hn::Add(bits, hn::Add(odd, hn::Set(du, 0xfff)));
  const VF normal = hn::BitCast(d, hn::AndNot(hn::Set(du, 0x1fff), sum));
  const VF subnormal =
      hn::Mul(hn::Round(hn::Mul(x, hn::Set(d, kSubnormalSteps))),
              hn::Set(d, 1 / kSubnormalSteps));
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, kMinNormal)), subnormal,
                        normal);
}

// Rounds to the next float16 that is not larger.
HWY_INLINE VF ToFloat16Down(VF x) {
  const DF d;
  const DU du;
  x = hn::Max(hn::Set(d, -kMaxFloat16), hn::Min(x, hn::Set(d, kMaxFloat16)));
  const auto bits = hn::BitCast(du, x);
  const auto low = hn::Set(du, 0x1fff);
  const auto away = hn::AndNot(low, hn::Add(bits, low));
  const auto toward = hn::AndNot(low, bits);
  const VF normal = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::BitCast(d, away),
                                   hn::BitCast(d, toward));
  const VF subnormal =
      hn::Mul(hn::Floor(hn::Mul(x, hn::Set(d, kSubnormalSteps))),
              hn::Set(d, 1 / kSubnormalSteps));
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, kMinNormal)), subnormal,
                        normal);
}

HWY_INLINE VF Code(VF u, VF top) {
  return hn::Min(hn::Max(hn::Round(u), hn::Zero(DF())), top);
}

struct Fit {
  VF scale, min, error;
};

// Codes t by (scale, min), then fits scale and min to the codes by least
// squares; `error` is the sum of squares with these codes and the new fit.
HWY_INLINE Fit Refit(const float* HWY_RESTRICT t, int size, VF top, VF scale,
                     VF min) {
  const DF d;
  const VF inverse = DivideOrZero(hn::Set(d, 1), scale);
  const VF shift = hn::Neg(hn::Mul(min, inverse));
  VF sq = hn::Zero(d), sqq = sq, sr = sq, sqr = sq, srr = sq;
  const size_t lanes = hn::Lanes(d);
  for (int i = 0; i < size; ++i) {
    const VF u = hn::MulAdd(hn::Load(d, t + i * lanes), inverse, shift);
    const VF q = Code(u, top);
    const VF r = hn::Sub(u, q);
    sq = hn::Add(sq, q);
    sqq = hn::MulAdd(q, q, sqq);
    sr = hn::Add(sr, r);
    sqr = hn::MulAdd(q, r, sqr);
    srr = hn::MulAdd(r, r, srr);
  }
  // The fit is r = alpha + beta q. With equal codes only, the determinant is 0.
  const VF n = hn::Set(d, static_cast<float>(size));
  const VF det = hn::Sub(hn::Mul(n, sqq), hn::Mul(sq, sq));
  const VF beta = DivideOrZero(hn::Sub(hn::Mul(n, sqr), hn::Mul(sq, sr)), det);
  const VF alpha = hn::Div(hn::Sub(sr, hn::Mul(beta, sq)), n);
  const VF rest = hn::Sub(srr, hn::Add(hn::Mul(alpha, sr), hn::Mul(beta, sqr)));
  return {hn::MulAdd(scale, beta, scale), hn::MulAdd(scale, alpha, min),
          hn::Mul(hn::Mul(scale, scale), rest)};
}

struct Best {
  VF scale, min, error;
};

// Tries a float16 scale and minimum on the numbers themselves; returns the
// scale that fits the codes best, given the minimum.
HWY_INLINE VF Try(const float* HWY_RESTRICT x, int size, VF top, VF scale,
                  VF min, Best& best) {
  const DF d;
  const VF inverse = DivideOrZero(hn::Set(d, 1), scale);
  VF error = hn::Zero(d), sqq = error, sqr = error;
  const size_t lanes = hn::Lanes(d);
  for (int i = 0; i < size; ++i) {
    const VF value = hn::Load(d, x + i * lanes);
    const VF q = Code(hn::Mul(hn::Sub(value, min), inverse), top);
    const VF r = hn::Sub(value, hn::MulAdd(q, scale, min));
    error = hn::MulAdd(r, r, error);
    sqq = hn::MulAdd(q, q, sqq);
    sqr = hn::MulAdd(q, r, sqr);
  }
  const auto better = hn::Lt(error, best.error);
  best.scale = hn::IfThenElse(better, scale, best.scale);
  best.min = hn::IfThenElse(better, min, best.min);
  best.error = hn::IfThenElse(better, error, best.error);
  return hn::Add(scale, DivideOrZero(sqr, sqq));
}

// The starts: the codes by which the range's ends are moved inwards.
constexpr float kStarts4[] = {-0.3f, 0.225f, 0.6f, 1.05f, 1.5f};
constexpr float kStarts8[] = {-0.4f, 0.0f, 0.4f};
constexpr int kRefinements = 4;

// `t` has the numbers mapped to [0, top].
template <size_t kStarts>
HWY_INLINE Fit Search(const float* HWY_RESTRICT t, int size, VF top,
                      const float (&starts)[kStarts]) {
  const DF d;
  const float codes = hn::GetLane(top);
  Fit best = {hn::Set(d, 1), hn::Zero(d), hn::Set(d, 1e30f)};
  for (const float low : starts) {
    for (const float high : starts) {
      Fit fit = Refit(t, size, top, hn::Set(d, (codes - low - high) / codes),
                      hn::Set(d, low));
      fit = Refit(t, size, top, fit.scale, fit.min);
      const auto better = hn::Lt(fit.error, best.error);
      best.scale = hn::IfThenElse(better, fit.scale, best.scale);
      best.min = hn::IfThenElse(better, fit.min, best.min);
      best.error = hn::IfThenElse(better, fit.error, best.error);
    }
  }
  for (int i = 0; i < kRefinements; ++i) {
    best = Refit(t, size, top, best.scale, best.min);
  }
  return best;
}

// Quantizes up to a vector of groups.
HWY_INLINE void QuantizeVector(const float* HWY_RESTRICT from, size_t stride,
                               int size, size_t count, int bits, float unit,
                               uint8_t* HWY_RESTRICT codes, size_t code_stride,
                               GroupParams* HWY_RESTRICT params) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN float x[kQuantGroup * kLanes];
  HWY_ALIGN float t[kQuantGroup * kLanes];
  const VF to_units = hn::Set(d, 1 / unit);  // exact: a power of two
  VF low = hn::Set(d, 1e30f), high = hn::Set(d, -1e30f);
  for (int i = 0; i < size; ++i) {
    HWY_ALIGN float row[kLanes] = {};
    std::memcpy(row, from + i * stride, count * sizeof(float));
    const VF v = hn::Mul(hn::Load(d, row), to_units);
    hn::Store(v, d, x + i * lanes);
    low = hn::Min(low, v);
    high = hn::Max(high, v);
  }
  const VF top = hn::Set(d, static_cast<float>((1 << bits) - 1));
  const VF range = hn::Sub(high, low);
  const VF stretch = DivideOrZero(top, range);
  for (int i = 0; i < size; ++i) {
    const VF v = hn::Sub(hn::Load(d, x + i * lanes), low);
    hn::Store(hn::Mul(v, stretch), d, t + i * lanes);
  }
  const Fit fit = bits == 4 ? Search(t, size, top, kStarts4)
                            : Search(t, size, top, kStarts8);

  Best best = {hn::Zero(d), hn::Zero(d), hn::Set(d, INFINITY)};
  const VF step = hn::Div(range, top);
  Try(x, size, top, ToFloat16(step), ToFloat16(low), best);
  // The minimum is below all numbers, so that a range narrower than float16's
  // steps there is not lost; equal numbers get code 1.
  const VF down = ToFloat16Down(low);
  const VF above = hn::Sub(high, down);
  const VF flat =
      hn::IfThenElse(hn::Gt(range, hn::Zero(d)), hn::Div(above, top), above);
  VF refit = Try(x, size, top, ToFloat16(flat), down, best);
  Try(x, size, top, ToFloat16(refit), down, best);
  const VF min = ToFloat16(hn::MulAdd(fit.min, step, low));
  refit = Try(x, size, top, ToFloat16(hn::Mul(fit.scale, step)), min, best);
  refit = Try(x, size, top, ToFloat16(refit), min, best);
  Try(x, size, top, ToFloat16(refit), min, best);

  const VF inverse = DivideOrZero(hn::Set(d, 1), best.scale);
  for (int i = 0; i < size; ++i) {
    const VF v = hn::Load(d, x + i * lanes);
    const VF q = Code(hn::Mul(hn::Sub(v, best.min), inverse), top);
    HWY_ALIGN uint8_t row[kLanes];
    hn::Store(hn::DemoteTo(DU8(), hn::ConvertTo(DI(), q)), DU8(), row);
    std::memcpy(codes + i * code_stride, row, count);
  }
  HWY_ALIGN float scales[kLanes], mins[kLanes];
  hn::Store(best.scale, d, scales);
  hn::Store(best.min, d, mins);
  for (size_t j = 0; j < count; ++j) {
    params[j] = {FloatToFloat16(scales[j]), FloatToFloat16(mins[j])};
  }
}

void QuantizeGroupsImpl(const float* x, size_t stride, int size, int width,
                        int bits, float unit, uint8_t* codes,
                        GroupParams* params) {
  const size_t lanes = hn::Lanes(DF());
  const size_t total = static_cast<size_t>(width);
  for (size_t j = 0; j < total; j += lanes) {
    // The next groups' numbers, or those of the call that follows: no processor
    // foresees such strides.
    for (int i = 0; i < size; ++i) hwy::Prefetch(x + i * stride + j + lanes);
    QuantizeVector(x + j, stride, size, std::min(lanes, total - j), bits, unit,
                   codes + j, total, params + j);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(QuantizeGroupsImpl);

absl::StatusOr<float> ChooseQuantUnit(const float* x, size_t count) {
  uint32_t largest = 0;  // bit patterns of magnitudes are in their order
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  }
  if (largest > std::bit_cast<uint32_t>(1e30f)) {
    return absl::InvalidArgumentError(
        "weights that are NaN, infinite or beyond 1e30 cannot be quantized");
  }
  const float magnitude = std::bit_cast<float>(largest);
  if (magnitude == 0) return 1.0f;
  // The largest number lies in (kMaxFloat16 / 2, kMaxFloat16].
  int exponent = 15 - std::ilogb(magnitude);
  if (std::ldexp(magnitude, exponent) > kMaxFloat16) --exponent;
  // No scale becomes subnormal in float32.
  return std::ldexp(1.0f, -std::min(exponent, 100));
}

void QuantizeGroups(const float* x, size_t stride, int size, int width,
                    int bits, float unit, uint8_t* codes, GroupParams* params) {
  HWY_DYNAMIC_DISPATCH(QuantizeGroupsImpl)
  (x, stride, size, width, bits, unit, codes, params);
}

}  // namespace sluice
#endif
