// Helpers for the Highway files, compiled once per target. It has no usual
// include guard: see Highway's foreach_target.h.

#include <cstdint>
#include <cstring>

#include "common/float16.h"
#include "common/types.h"
#include "hwy/highway.h"

#if defined(SLUICE_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_SIMD_INL_H_
#undef SLUICE_SIMD_INL_H_
#else
#define SLUICE_SIMD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DU32 = hn::Rebind<uint32_t, DF>;
using DU16 = hn::Rebind<uint16_t, DF>;
using VF = hn::Vec<DF>;
constexpr size_t kMaxLanes = HWY_MAX_BYTES / sizeof(float);

HWY_INLINE VF LoadWide(const float* p) { return hn::LoadU(DF(), p); }
HWY_INLINE VF LoadWide(const uint16_t* p) {
  const auto wide = hn::PromoteTo(DU32(), hn::LoadU(DU16(), p));
  return hn::BitCast(DF(), hn::ShiftLeft<16>(wide));
}

// Loads a vector of float16, NaN and infinity included.
HWY_INLINE VF LoadHalf(const uint16_t* p) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, DF> dh;
  return hn::PromoteTo(
      DF(), hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(p)));
#else
  // Highway's conversion in software makes numbers of NaN and infinity.
  HWY_ALIGN float wide[kMaxLanes];
  for (size_t i = 0; i < hn::Lanes(DF()); ++i) wide[i] = Float16ToFloat(p[i]);
  return hn::Load(DF(), wide);
#endif
}

HWY_INLINE VF LoadWide(const Float16* p) { return LoadHalf(&p->bits); }

HWY_INLINE void StoreWide(VF v, float* p) { hn::StoreU(v, DF(), p); }
HWY_INLINE void StoreWide(VF v, uint16_t* p) {
  const DU32 du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded =
      hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff))));
  const auto is_number = hn::RebindMask(du, hn::Eq(v, v));
  const auto out = hn::IfThenElse(is_number, rounded, hn::Set(du, 0x7fc0));
  // Values are below 2^16, so that signed saturation does not change them.
  const hn::Rebind<int32_t, DF> di;
  hn::StoreU(hn::DemoteTo(DU16(), hn::BitCast(di, out)), DU16(), p);
}

// Rounds each element in scalar code, as few are stored and Highway rounds
// differently on some targets.
HWY_INLINE void StoreWide(VF v, Float16* p) {
  HWY_ALIGN float wide[kMaxLanes];
  hn::Store(v, DF(), wide);
  for (size_t i = 0; i < hn::Lanes(DF()); ++i) {
    p[i].bits = FloatToFloat16(wide[i]);
  }
}

// Loads the first n elements (0 < n <= lanes); the other lanes are zero.
template <typename T>
HWY_INLINE VF LoadPart(const T* p, size_t n) {
  if (n == hn::Lanes(DF())) return LoadWide(p);
  HWY_ALIGN T buffer[kMaxLanes] = {};
  std::memcpy(buffer, p, n * sizeof(T));
  return LoadWide(buffer);
}

template <typename T>
HWY_INLINE void StorePart(VF v, T* p, size_t n) {
  if (n == hn::Lanes(DF())) {
    StoreWide(v, p);
    return;
  }
  HWY_ALIGN T buffer[kMaxLanes];
  StoreWide(v, buffer);
  std::memcpy(p, buffer, n * sizeof(T));
}

// Stores to element `at` of `out`, of a dtype.
HWY_INLINE void StorePartAs(DType dtype, VF v, void* out, size_t at, size_t n) {
  switch (dtype) {
    case DType::kFloat32:
      return StorePart(v, static_cast<float*>(out) + at, n);
    case DType::kBFloat16:
      return StorePart(v, static_cast<uint16_t*>(out) + at, n);
    case DType::kFloat16:
      return StorePart(v, static_cast<Float16*>(out) + at, n);
  }
}

// Calls body(offset, count) for whole vectors, and for the rest.
template <typename Body>
HWY_INLINE void ForEachVector(size_t n, const Body& body) {
  const size_t lanes = hn::Lanes(DF());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, lanes);
  if (i < n) body(i, n - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#endif  // SLUICE_SIMD_INL_H_
