#include "runtime/model/checkpoint/dummy_source.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "runtime/model/checkpoint/quantization/quantized_weight.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/model/checkpoint/dummy_source.cc"
#include "hwy/foreach_target.h"
// Highway's header must follow foreach_target.h:
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A 32-bit mixer ("lowbias32", C. Wellons): uniform, and free of loops.
template <class V>
HWY_INLINE V MixVector(V x) {
  const hn::DFromV<V> d;
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(d, 0x7feb352du));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(d, 0x846ca68bu));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

// Makes up the beginning of a row of `cols` numbers, whole vectors of them:
// each is the mixed bits of its column and `base`, as an integer, times
// `scale`. Returns how many.
int64_t MakeNumbers(uint32_t base, float scale, int64_t cols, float* out) {
  const hn::ScalableTag<float> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::RebindToSigned<decltype(df)> di;
  const auto bases = hn::Set(du, base);
  const auto scales = hn::Set(df, scale);
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  int64_t col = 0;
  for (; col + lanes <= cols; col += lanes) {
    const auto columns = hn::Iota(du, static_cast<uint32_t>(col));
    const auto bits = hn::BitCast(di, MixVector(hn::Xor(bases, columns)));
    hn::StoreU(hn::Mul(hn::ConvertTo(df, bits), scales), df, out + col);
  }
  return col;
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(MakeNumbers);

namespace {

// Hashes the name by FNV-1a, so that each tensor gets its own numbers, and each
// of a stack.
uint32_t Seed(const TensorRef& ref) {
  uint32_t hash = 2166136261u;
  for (const char c : ref.name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  }
  return hash + static_cast<uint32_t>(ref.in_stack) * 0x85ebca6bu;
}

// The mixer of MakeNumbers.
uint32_t Mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

}  // namespace

absl::Status DummySource::Check(const TensorRef&) const {
  return absl::OkStatus();
}

absl::StatusOr<std::string> DummySource::ContentId(const std::string&,
                                                   Progress) const {
  return "dummy-1";
}

absl::Status DummySource::ReadRows(const TensorRef& ref, int64_t row_begin,
                                   int64_t row_end, float* out) const {
  if (ref.shape.size() == 1) {
    const bool norm = absl::EndsWith(ref.name, ".weight");
    std::fill(out, out + ref.shape[0], norm ? 1.0f : 0.0f);
    return absl::OkStatus();
  }
  const int64_t cols = ref.shape[1];
  const uint32_t seed = Seed(ref);
  const bool table = ref.role == TensorRole::kEmbedding ||
                     ref.role == TensorRole::kPositionEmbedding;
  const float deviation =
      table ? 0.5f : 1.0f / std::sqrt(static_cast<float>(cols));
  const float scale = deviation * std::sqrt(3.0f) * 0x1p-31f;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const uint32_t base = Mix(seed + static_cast<uint32_t>(row) * 0x9e3779b9u);
    int64_t col = HWY_DYNAMIC_DISPATCH(MakeNumbers)(base, scale, cols, out);
    for (; col < cols; ++col) {
      const uint32_t bits = Mix(base ^ static_cast<uint32_t>(col));
      out[col] = static_cast<float>(static_cast<int32_t>(bits)) * scale;
    }
    out += cols;
  }
  return absl::OkStatus();
}

absl::Status DummySource::ReadCodes(const TensorRef& ref,
                                    const CodeFormat& format, int64_t row_begin,
                                    int64_t row_end, std::byte* out) const {
  const int64_t k = ref.shape[1];
  const size_t row_bytes = format.row_bytes(k);
  std::fill_n(out, (row_end - row_begin) * row_bytes, std::byte{});
  if (format.scaled == nullptr) return absl::OkStatus();
  const ScaledCodes& scaled = *format.scaled;
  const bool floats = scaled.code == ScaledCodes::Code::kE4M3;
  // The standard deviation of random codes, or about that.
  const float deviation = floats ? 100.0f : format.bits == 4 ? 4.6f : 73.9f;
  const std::vector<float> scales(
      scaled.groups(k), 1.0f / (deviation * std::sqrt(static_cast<float>(k))));
  for (int64_t row = row_begin; row < row_end; ++row, out += row_bytes) {
    const uint32_t base =
        Mix(Seed(ref) + static_cast<uint32_t>(row) * 0x9e3779b9u);
    std::byte* next = out;
    for (int64_t i = 0; i < k * format.bits / 8; ++i) {
      const uint32_t code = Mix(base ^ static_cast<uint32_t>(i)) >> 24;
      *next++ = static_cast<std::byte>(floats ? code & 0xf7 : code);  // no NaN
    }
    next = WriteScales(scales, scaled.stored(), next);
    if (scaled.zero_bits > 0) next += scaled.groups(k);
    for (int64_t i = 0; scaled.any_order && i < k; ++i) {
      next[i] = static_cast<std::byte>(i / scaled.group);
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
#endif  // HWY_ONCE
