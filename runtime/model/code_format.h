#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/strings/string_view.h"

// The formats in which checkpoints have coded weights. A row's inputs lie in
// blocks; of a block, each `group` of inputs has a scale and a minimum, which a
// block's parameters give, and each input a code:
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
};

struct CodeFormat {
  CodeKind kind;
  absl::string_view name;  // as GGUF's: "Q4_K"
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

  // Returns the bytes of a block, in a checkpoint as here.
  constexpr size_t block_bytes() const {
    return static_cast<size_t>(block) * bits / 8 + 2 * halves + bytes;
  }
  // Returns the bytes of a row of k inputs, a multiple of `block`.
  constexpr size_t row_bytes(int64_t k) const {
    return static_cast<size_t>(k / block) * block_bytes();
  }
};

// Outputs whose codes lie together where a GEMM takes them
// (runtime/quant/strip_codec.h).
inline constexpr int32_t kStripColumns = 16;

inline constexpr int32_t kMaxCodeBlock = 256;
inline constexpr int32_t kMaxCodeGroups = 16;  // of a block
inline constexpr int kMaxCodeHalves = 2;
inline constexpr int kMaxCodeBytes = 16;

// Returns all formats, in the order of CodeKind. Static.
std::span<const CodeFormat> CodeFormats();
// Returns the format of this name, or null.
const CodeFormat* FindCodeFormat(absl::string_view name);

}  // namespace sluice
