#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// The header of a .safetensors file. The file is an unsigned 64-bit
// little-endian header length N, N bytes of JSON, then the data:
//
//   {"__metadata__": {"format": "pt"},
//    "name": {"dtype": "BF16", "shape": [8, 4], "data_offsets": [0, 64]}, ...}
//
// Offsets count from the start of the data. The format demands that the tensors
// cover the data without holes or overlap, which rules out files that hide
// bytes or alias tensors.
struct SafetensorsEntry {
  std::string dtype;           // as written: "F32", "BF16", ...
  std::vector<int64_t> shape;  // each >= 0
  uint64_t begin = 0;          // offset in the data, bytes
  uint64_t end = 0;
};

using SafetensorsHeader = absl::flat_hash_map<std::string, SafetensorsEntry>;

// The reference implementation's own limit.
constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Returns "[8, 4]".
std::string ShapeText(const std::vector<int64_t>& shape);

// Bytes of one element; 0 for a dtype that is unknown or not byte-sized.
int SafetensorsElementBytes(absl::string_view dtype);

// Parses the JSON and checks all of the above against `data_bytes`, the size of
// the data behind it. kInvalidArgument names the tensor.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view text,
                                                         uint64_t data_bytes);

}  // namespace sluice
