#include "tests/parity/coded_source.h"

#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "common/float16.h"
#include "common/status_macros.h"
#include "runtime/model/checkpoint/tensor_names.h"
#include "runtime/quant/scaled_strip.h"
#include "runtime/quant/strip_codec.h"

namespace sluice {
namespace {

// A float16 and where blocks have it; at most two.
struct Scale {
  std::vector<size_t> offsets;
  uint16_t half = 0;
};

Scale ScaleOf(const CodeFormat& format) {
  switch (format.kind) {
    case CodeKind::kQ4_0:
    case CodeKind::kQ5_0:
      return {{0}, 0x2000};  // 2^-7
    case CodeKind::kQ4_1:
    case CodeKind::kQ5_1:
      return {{0, 2}, 0x1c00};  // 2^-8
    case CodeKind::kQ8_0:
    case CodeKind::kIq4Nl:
      return {{0}, 0x1000};  // 2^-11
    case CodeKind::kQ2_K:
      return {{80, 82}, 0x1800};  // 2^-9
    case CodeKind::kQ3_K:
      return {{108}, 0x1000};
    case CodeKind::kQ4_K:
    case CodeKind::kQ5_K:
      return {{0, 2}, 0x0555};
    case CodeKind::kQ6_K:
      return {{208}, 0x0123};  // subnormal
    case CodeKind::kMxFp4:
    case CodeKind::kScaled:
      break;
  }
  return {};
}

// Makes a row of random codes. Scales are about the largest that give weights
// below 0.1, and zero points near the middle.
void MakeScaledRow(const CodeFormat& format, const TensorRef& ref, int64_t row,
                   std::byte* out) {
  const ScaledCodes& scaled = *format.scaled;
  const int64_t k = ref.shape[1];
  const auto seeded = [&](int64_t of) {
    std::seed_seq seed{std::hash<std::string>()(ref.name), size_t(of)};
    return std::minstd_rand(seed);
  };
  std::minstd_rand random = seeded(row);
  for (int64_t i = 0; i < k * format.bits / 8; ++i) {
    auto code = static_cast<uint8_t>(random() >> 8);
    // No NaN among floats.
    if (scaled.code == ScaledCodes::Code::kE4M3) code &= 0xf7;
    *out++ = std::byte(code);
  }
  std::minstd_rand of_scales =
      scaled.shared ? seeded(1000000 + row / kStripColumns) : random;
  const float most = scaled.code == ScaledCodes::Code::kE4M3   ? 240
                     : scaled.code == ScaledCodes::Code::kInt8 ? 128
                                                               : 8;
  for (int32_t group = 0; group < scaled.groups(k); ++group) {
    const float scale =
        0.1f / most * (1 - static_cast<float>(of_scales() % 256) / 1024);
    const uint16_t half =
        scaled.scale == DType::kFloat16
            ? FloatToFloat16(scale)
            : static_cast<uint16_t>(std::bit_cast<uint32_t>(scale) >> 16);
    std::memcpy(
        out,
        scaled.scale_bytes() == 4 ? static_cast<const void*>(&scale) : &half,
        scaled.scale_bytes());
    out += scaled.scale_bytes();
  }
  for (int32_t group = 0; scaled.zero_bits > 0 && group < scaled.groups(k);
       ++group) {
    *out++ = static_cast<std::byte>(static_cast<int>(random() % 3) - 1);
  }
  // Weights of the same inputs have them in the same order.
  std::minstd_rand of_order(static_cast<uint32_t>(k));
  for (int64_t i = 0; scaled.any_order && i < k; ++i) {
    *out++ = static_cast<std::byte>(of_order() % scaled.groups(k));
  }
}

}  // namespace

CodedSource::CodedSource(const DecoderSpec& spec, uint64_t seed)
    : RandomSource(seed) {
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    for (const TensorRef& ref : LayerTensors(spec, layer)) {
      formats_[ref.name] = CodesOf(spec.layer(layer).codes, ref.role);
    }
  }
  for (const TensorRef& ref : EmbeddingTensors(spec)) {
    formats_[ref.name] = spec.embedding_codes;
  }
  for (const TensorRef& ref : HeadTensors(spec)) {
    if (ref.role == TensorRole::kHead) formats_[ref.name] = spec.head_codes;
  }
}

absl::Status CodedSource::ReadCodes(const TensorRef& ref,
                                    const CodeFormat& format, int64_t row_begin,
                                    int64_t row_end, std::byte* out) const {
  const auto found = formats_.find(ref.name);
  if (found == formats_.end() || found->second != &format) {
    return Internal("no codes of ", format.name, " of ", ref.name);
  }
  if (format.scaled != nullptr) {
    for (int64_t row = row_begin; row < row_end; ++row) {
      MakeScaledRow(format, ref, row, out);
      out += format.row_bytes(ref.shape[1]);
    }
    return absl::OkStatus();
  }
  const Scale scale = ScaleOf(format);
  for (int64_t row = row_begin; row < row_end; ++row) {
    std::seed_seq seed{std::hash<std::string>()(ref.name), size_t(row)};
    std::minstd_rand random(seed);
    for (int64_t block = 0; block < ref.shape[1] / format.block; ++block) {
      for (size_t i = 0; i < format.block_bytes(); ++i) {
        out[i] = static_cast<std::byte>(random() >> 8);
      }
      if (format.kind == CodeKind::kMxFp4) out[0] = std::byte(121);
      for (const size_t offset : scale.offsets) {
        const auto half = static_cast<uint16_t>(scale.half + random() % 256);
        std::memcpy(out + offset, &half, 2);
      }
      out += format.block_bytes();
    }
  }
  return absl::OkStatus();
}

absl::Status CodedSource::ReadRows(const TensorRef& ref, int64_t row_begin,
                                   int64_t row_end, float* out) const {
  const auto found = formats_.find(ref.name);
  if (found == formats_.end() || found->second == nullptr) {
    return RandomSource::ReadRows(ref, row_begin, row_end, out);
  }
  const CodeFormat& format = *found->second;
  const auto k = static_cast<int32_t>(ref.shape[1]);
  std::vector<std::byte> row(format.row_bytes(k));
  std::vector<std::byte> strip(StripBytes(format, k));
  const PanelOrder order = {1, 1, k};
  for (int64_t i = row_begin; i < row_end; ++i, out += k) {
    SLUICE_RETURN_IF_ERROR(ReadCodes(ref, format, i, i + 1, row.data()));
    const std::byte* const groups = GroupsOfRow(format, row.data(), k);
    SLUICE_RETURN_IF_ERROR(
        EncodeStrip(format, row.data(), 1, k, strip.data(), groups));
    DecodeStrip(format, strip.data(), k, DType::kFloat32, order, 0, 1, out,
                groups);
  }
  return absl::OkStatus();
}

}  // namespace sluice
