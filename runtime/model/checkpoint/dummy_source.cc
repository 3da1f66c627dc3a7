#include "runtime/model/checkpoint/dummy_source.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"

namespace sluice {
namespace {

// Hashes the name by FNV-1a, so that each tensor gets its own numbers.
uint32_t Seed(const std::string& name) {
  uint32_t hash = 2166136261u;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  }
  return hash;
}

// A 32-bit mixer ("lowbias32", C. Wellons): uniform, and free of loops.
inline uint32_t Mix(uint32_t x) {
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
  const uint32_t seed = Seed(ref.name);
  const bool table = ref.role == TensorRole::kEmbedding ||
                     ref.role == TensorRole::kPositionEmbedding;
  const float deviation =
      table ? 0.5f : 1.0f / std::sqrt(static_cast<float>(cols));
  const float scale = deviation * std::sqrt(3.0f) * 0x1p-31f;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const uint32_t base = Mix(seed + static_cast<uint32_t>(row) * 0x9e3779b9u);
    for (int64_t col = 0; col < cols; ++col) {
      const uint32_t bits = Mix(base ^ static_cast<uint32_t>(col));
      *out++ = static_cast<float>(static_cast<int32_t>(bits)) * scale;
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
