#include "runtime/model/checkpoint/quantization/mxfp4_weight.h"

#include <cmath>
#include <memory>
#include <vector>

#include "common/status_macros.h"

namespace sluice {

struct MxFp4Weight::Row {
  std::vector<uint8_t> codes, exponents;
  uint8_t code(int64_t column) const {
    return codes[column / 2] >> column % 2 * 4 & 15;
  }
};

MxFp4Weight::MxFp4Weight(const WeightPlace& place, const std::string& codes,
                         const std::string& scales)
    : codes_name_(codes),
      scales_name_(scales),
      base_(place.in_stack * place.rows),
      columns_(place.columns) {
  parts_ = {codes_name_, scales_name_};
}

absl::StatusOr<const CodeFormat*> MxFp4Weight::FindFormat(
    const StoredTensors&) const {
  return FindCodeFormat("MXFP4");
}

absl::Status MxFp4Weight::Load(const StoredTensors& tensors) {
  SLUICE_ASSIGN_OR_RETURN(format_, FindFormat(tensors));
  return absl::OkStatus();
}

absl::Status MxFp4Weight::ReadRow(const StoredTensors& tensors, int64_t row,
                                  Row* out) const {
  const auto read = [&](const std::string& name, int64_t bytes,
                        std::vector<uint8_t>* to) {
    to->resize(bytes);
    const int64_t at = (base_ + row) * bytes;
    return tensors.Read(name, at, at + bytes,
                        reinterpret_cast<char*>(to->data()));
  };
  SLUICE_RETURN_IF_ERROR(read(codes_name_, columns_ / 2, &out->codes));
  return read(scales_name_, columns_ / kGroup, &out->exponents);
}

absl::Status MxFp4Weight::ReadRows(const StoredTensors& tensors, int64_t begin,
                                   int64_t end, float* out) const {
  constexpr float kNumbers[16] = {0, 0.5F,  1,  1.5F,  2,  3,  4,  6,
                                  0, -0.5F, -1, -1.5F, -2, -3, -4, -6};
  Row of;
  for (int64_t row = begin; row < end; ++row) {
    SLUICE_RETURN_IF_ERROR(ReadRow(tensors, row, &of));
    for (int64_t column = 0; column < columns_; ++column) {
      const int exponent = of.exponents[column / kGroup];
      const float number = kNumbers[of.code(column)];
      *out++ =
          exponent == 255 ? std::nanf("") : std::ldexp(number, exponent - 127);
    }
  }
  return absl::OkStatus();
}

// GGUF's block has the exponent first, and then the codes of inputs i and i +
// 16 in a byte.
absl::Status MxFp4Weight::ReadCodes(const StoredTensors& tensors, int64_t begin,
                                    int64_t end, std::byte* out) const {
  constexpr int64_t kHalf = kGroup / 2;
  Row of;
  for (int64_t row = begin; row < end; ++row) {
    SLUICE_RETURN_IF_ERROR(ReadRow(tensors, row, &of));
    for (int64_t column = 0; column < columns_; column += kGroup) {
      *out++ = std::byte{of.exponents[column / kGroup]};
      for (int64_t i = column; i < column + kHalf; ++i) {
        *out++ = static_cast<std::byte>(of.code(i) | of.code(i + kHalf) << 4);
      }
    }
  }
  return absl::OkStatus();
}

// What quant_method "mxfp4" stores for a stack of weights [stack, rows,
// columns], those of gpt-oss's experts (transformers' integrations/mxfp4.py):
//
//   NAME_blocks  U8 [stack, rows, columns / 32, 16]
//   NAME_scales  U8 [stack, rows, columns / 32]
absl::StatusOr<std::unique_ptr<QuantizedWeight>> OpenMxFp4Weight(
    const StoredTensors& tensors, const WeightPlace& place) {
  const std::string codes = place.module + "_blocks";
  const std::string scales = place.module + "_scales";
  const auto found = tensors.Find(codes);
  if (!found || place.stack == 0) return nullptr;
  if (place.columns % MxFp4Weight::kGroup != 0) {
    return InvalidArgument(found->path, ": ", place.module, " has ",
                           place.columns, " inputs, which groups of ",
                           MxFp4Weight::kGroup, " do not divide");
  }
  const int64_t groups = place.columns / MxFp4Weight::kGroup;
  SLUICE_RETURN_IF_ERROR(
      CheckPart(tensors, place, codes, {"U8"},
                {{place.stack, place.rows, groups, MxFp4Weight::kGroup / 2}})
          .status());
  SLUICE_RETURN_IF_ERROR(CheckPart(tensors, place, scales, {"U8", "F8_E8M0"},
                                   {{place.stack, place.rows, groups}})
                             .status());
  return std::make_unique<MxFp4Weight>(place, codes, scales);
}

}  // namespace sluice
