#include "runtime/quant/convert_floats.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/quant/convert_floats.cc"
#include "hwy/foreach_target.h"
// Highway's header must follow foreach_target.h:
#include "hwy/highway.h"
#include "runtime/quant/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {

void FloatToBf16Impl(const float* x, size_t n, uint16_t* out) {
  ForEachVector(n, [&](size_t i, size_t count) HWY_ATTR {
    StorePart(LoadPart(x + i, count), out + i, count);
  });
}

void Bf16ToFloatImpl(const uint16_t* x, size_t n, float* out) {
  ForEachVector(n, [&](size_t i, size_t count) HWY_ATTR {
    StorePart(LoadPart(x + i, count), out + i, count);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(FloatToBf16Impl);
HWY_EXPORT(Bf16ToFloatImpl);

void FloatToBf16(const float* x, int32_t n, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(FloatToBf16Impl)(x, n, out);
}

void ConvertFloats(const float* x, int64_t n, DType dtype, void* out) {
  switch (dtype) {
    case DType::kFloat32:
      std::memcpy(out, x, n * sizeof(float));
      return;
    case DType::kBFloat16:
      HWY_DYNAMIC_DISPATCH(FloatToBf16Impl)(x, n, static_cast<uint16_t*>(out));
      return;
    case DType::kFloat16:
      for (int64_t i = 0; i < n; ++i) {
        static_cast<uint16_t*>(out)[i] = FloatToFloat16(x[i]);
      }
      return;
  }
}

void ToFloats(const void* x, int64_t n, DType dtype, float* out) {
  switch (dtype) {
    case DType::kFloat32:
      std::memcpy(out, x, n * sizeof(float));
      return;
    case DType::kBFloat16:
      HWY_DYNAMIC_DISPATCH(Bf16ToFloatImpl)
      (static_cast<const uint16_t*>(x), n, out);
      return;
    case DType::kFloat16:
      for (int64_t i = 0; i < n; ++i) {
        out[i] = Float16ToFloat(static_cast<const uint16_t*>(x)[i]);
      }
      return;
  }
}

}  // namespace sluice
#endif  // HWY_ONCE
