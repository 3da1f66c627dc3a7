#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/strings/string_view.h"
#include "common/number_format.h"

// The formats in which checkpoints have coded weights: those of GGUF, and those
// of quantized safetensors files (ScaledCodes).
//
// In GGUF's, a row's inputs lie in blocks; of a block, each `group` of inputs
// has a scale and a minimum, which a block's parameters give, and each input a
// code:
//
//   value = number(code) * scale + minimum
//
// evaluated in float32. number(code) is the code itself, or a table's entry.
// The formats of GGUF are those of ggml's block_q4_0 and its kin: scales and
// minima are products of a float16 and at most 8 bits, so that number * scale
// is exact, and the sum rounds once, as ggml's own dequantization does.

namespace sluice {

enum class CodeKind : uint8_t {
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIq4Nl,
  kMxFp4,
  kScaled,  // all of ScaledCodes
};

// Codes that are multiplied by a scale, as FP8, GPTQ, AWQ and
// compressed-tensors have them:
//
//   value = (number(code) - zero point) * scale
//
// The product is made in float32 and rounded to `scale`, as the methods'
// references do; number(code) of integers is the code less the middle one. A
// row of k inputs is, one after the other: codes, unsigned, the first in the
// lowest bits; a number of stored() for each group; a signed byte for the zero
// point of each; and, in any order, a byte for the group of each input.
struct ScaledCodes {
  enum class Code : uint8_t { kE4M3, kInt4, kInt8 };
  Code code;
  int32_t group;   // inputs that share a scale; 0: all
  DType scale;     // of the product
  int zero_bits;   // of a zero point: 0 (there is none), 4 or 8
  bool shared;     // the rows of a strip have the same scales
  bool any_order;  // inputs say which group they are of
  friend bool operator==(const ScaledCodes&, const ScaledCodes&) = default;

  // Returns the type in which a scale is kept.
  constexpr DType stored() const {
    return group == 0 || shared ? DType::kFloat32 : scale;
  }
  constexpr size_t scale_bytes() const {
    return stored() == DType::kFloat32 ? 4 : 2;
  }
  // Returns the groups of a row. Of any order, the last may be cut.
  constexpr int32_t groups(int64_t k) const {
    return group == 0 ? 1 : static_cast<int32_t>((k + group - 1) / group);
  }
};

// Outputs whose codes lie together where a GEMM takes them
// (runtime/quant/strip_codec.h).
inline constexpr int32_t kStripColumns = 16;

inline constexpr int32_t kMaxOrderedGroups = 256;  // of a row, of any order

struct CodeFormat {
  CodeKind kind;
  absl::string_view name;  // as GGUF's, "Q4_K", or made of ScaledCodes
  int bits;                // of a code: 2 to 8
  int32_t block;           // inputs with parameters of their own
  int32_t group;           // inputs that share a scale and a minimum
  // The parameters of a block: numbers of 16 bits, then bytes.
  int halves;
  int bytes;
  // Takes a block of a checkpoint's row apart: `block` codes, and its
  // parameters.
  void (*split)(const std::byte* raw, uint8_t* codes, uint16_t* halves,
                uint8_t* bytes);
  const ScaledCodes* scaled = nullptr;  // null: one of GGUF

  // Whether a row may have k inputs.
  bool Fits(int64_t k) const {
    return k % block == 0 && (scaled == nullptr || !scaled->any_order ||
                              scaled->groups(k) <= kMaxOrderedGroups);
  }
  // Returns the bytes of a block of one of GGUF, in a checkpoint as here.
  constexpr size_t block_bytes() const {
    return static_cast<size_t>(block) * bits / 8 + 2 * halves + bytes;
  }
  // Returns the bytes of a row of k inputs, of a format that they fit.
  size_t row_bytes(int64_t k) const;
  // Returns the bytes of a strip of k inputs.
  size_t strip_bytes(int64_t k) const;
};

inline constexpr int32_t kMaxCodeBlock = 256;
inline constexpr int32_t kMaxCodeGroups = 16;  // of a block
inline constexpr int kMaxCodeHalves = 2;
inline constexpr int kMaxCodeBytes = 16;

// Returns the formats of GGUF, in the order of CodeKind. Static.
std::span<const CodeFormat> CodeFormats();
// Returns all those of ScaledCodes. Static.
std::span<const CodeFormat> ScaledFormats();
// Return the format of this name, or that is scaled so; or null.
const CodeFormat* FindCodeFormat(absl::string_view name);
const CodeFormat* FindScaledFormat(const ScaledCodes& scaled);

}  // namespace sluice
