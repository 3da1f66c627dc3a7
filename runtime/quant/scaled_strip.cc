#include "runtime/quant/scaled_strip.h"

#include <cmath>
#include <cstring>

#include "common/float16.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

// The parts of a row, as ScaledCodes says.
struct RowParts {
  const uint8_t* codes = nullptr;  // null: there is no row
  const std::byte* scales = nullptr;
  const int8_t* zeros = nullptr;
  const std::byte* order = nullptr;  // if it is any
};

float NumberOf(const std::byte* scale, DType dtype) {
  if (dtype == DType::kFloat32) {
    float number;
    std::memcpy(&number, scale, sizeof number);
    return number;
  }
  uint16_t bits;
  std::memcpy(&bits, scale, sizeof bits);
  return dtype == DType::kBFloat16 ? BFloat16ToFloat(bits)
                                   : Float16ToFloat(bits);
}

// Makes a strip of rows of k inputs.
class StripWriter {
 public:
  StripWriter(const CodeFormat& format, const std::byte* rows, int32_t count,
              int32_t k, const std::byte* groups, std::byte* out)
      : scaled_(*format.scaled),
        bits_(format.bits),
        count_(count),
        k_(k),
        groups_(scaled_.groups(k)),
        order_(groups),
        next_(reinterpret_cast<uint8_t*>(out)) {
    const size_t code_bytes = static_cast<size_t>(k) * format.bits / 8;
    const size_t scale_bytes = groups_ * scaled_.scale_bytes();
    for (int32_t c = 0; c < count; ++c) {
      const std::byte* const row = rows + c * format.row_bytes(k);
      const std::byte* const zeros = row + code_bytes + scale_bytes;
      columns_[c] = {reinterpret_cast<const uint8_t*>(row), row + code_bytes,
                     reinterpret_cast<const int8_t*>(zeros),
                     GroupsOfRow(format, row, k)};
    }
  }

  // Checks what the format demands of rows.
  absl::Status Check() const {
    const size_t scale_bytes = scaled_.scale_bytes();
    for (int32_t c = 0; c < count_; ++c) {
      const RowParts& row = columns_[c];
      for (int32_t g = 0; g < groups_; ++g) {
        if (!std::isfinite(
                NumberOf(row.scales + g * scale_bytes, scaled_.stored()))) {
          return InvalidArgument("row ", c, " of the ", count_,
                                 " has a scale that is no number");
        }
      }
      for (int32_t i = 0; scaled_.code == ScaledCodes::Code::kE4M3 && i < k_;
           ++i) {
        if ((row.codes[i] & 0x7f) == 0x7f) {
          return InvalidArgument("row ", c, " of the ", count_,
                                 " has NaN as its weight ", i);
        }
      }
      if (scaled_.shared && std::memcmp(row.scales, columns_[0].scales,
                                        groups_ * scale_bytes) != 0) {
        return Internal("rows 0 and ", c, " of the ", count_,
                        " are not of one strip");
      }
      if (scaled_.any_order && std::memcmp(row.order, order_, k_) != 0) {
        return Internal("row ", c, " of the ", count_,
                        " has its inputs in an order of its own");
      }
      for (int32_t i = 0; scaled_.any_order && i < k_; ++i) {
        if (static_cast<int32_t>(row.order[i]) >= groups_) {
          return Internal("input ", i, " has no group");
        }
      }
    }
    return absl::OkStatus();
  }

  void Write() {
    const int32_t group = k_ / groups_;
    for (int32_t g = 0; g < groups_; ++g) {
      WriteGroup(g);
      if (!scaled_.any_order) WriteCodes(g * group, (g + 1) * group);
    }
    if (scaled_.any_order) WriteCodes(0, k_);
  }

 private:
  // Writes the scales and zero points of a group.
  void WriteGroup(int32_t g) {
    const size_t bytes = scaled_.scale_bytes();
    for (int32_t c = 0; c < (scaled_.shared ? 1 : kStripColumns); ++c) {
      if (c < count_) {
        std::memcpy(next_, columns_[c].scales + g * bytes, bytes);
      } else {
        std::memset(next_, 0, bytes);
      }
      next_ += bytes;
    }
    if (scaled_.zero_bits == 0) return;
    const auto zero = [&](int32_t c) {
      return c < count_ ? columns_[c].zeros[g] : 0;
    };
    const int32_t step = 8 / scaled_.zero_bits;
    for (int32_t c = 0; c < kStripColumns; c += step) {
      *next_++ = static_cast<uint8_t>(
          step == 1 ? zero(c) : (zero(c) + 8) | (zero(c + 1) + 8) << 4);
    }
  }

  // Writes the codes of inputs [begin, end), two of each column at a time.
  void WriteCodes(int32_t begin, int32_t end) {
    // Codes that stand for 0.
    const uint8_t none = scaled_.code == ScaledCodes::Code::kE4M3 ? 0
                         : bits_ == 4                             ? 0x88
                                                                  : 0x80;
    const int32_t bytes = bits_ / 4;
    for (int32_t i = begin; i < end; i += 2) {
      for (int32_t c = 0; c < kStripColumns; ++c) {
        for (int32_t j = 0; j < bytes; ++j) {
          *next_++ = c < count_ ? columns_[c].codes[i / 2 * bytes + j] : none;
        }
      }
    }
  }

  const ScaledCodes& scaled_;
  const int bits_;
  const int32_t count_;
  const int32_t k_;
  const int32_t groups_;
  const std::byte* const order_;
  uint8_t* next_;
  RowParts columns_[kStripColumns];
};

}  // namespace

absl::Status EncodeScaledStrip(const CodeFormat& format, const std::byte* rows,
                               int32_t count, int32_t k,
                               const std::byte* groups, std::byte* out) {
  StripWriter writer(format, rows, count, k, groups, out);
  SLUICE_RETURN_IF_ERROR(writer.Check());
  writer.Write();
  return absl::OkStatus();
}

}  // namespace sluice
