#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/gguf/gguf_metadata.h"
#include "runtime/gguf/gguf_types.h"

namespace sluice {

// What stands before the data of a GGUF file, version 2 or 3, little-endian:
//
//   "GGUF", version (32 bits), number of tensors, of metadata (64 bits each)
//   metadata: key, type (32 bits), value
//   tensors: name, number of dimensions (32 bits), dimensions (64 bits each),
//            type (32 bits), offset in the data (64 bits)
//   zeros, up to a multiple of the alignment; then the data
//
// A string is its length (64 bits) and its bytes.
struct GgufTensor {
  std::string name;
  // The outermost dimension first, so that a matrix is [rows, columns]: the
  // reverse of the file's order.
  std::vector<int64_t> shape;
  const GgufType* type = nullptr;
  uint64_t begin = 0;  // offset in the data, bytes
  uint64_t end = 0;
};

struct GgufHeader {
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  // as the file has them
  uint64_t data_offset = 0;         // bytes before the data, padding included
};

constexpr absl::string_view kGgufMagic = "GGUF";
constexpr uint64_t kMaxGgufHeaderBytes = uint64_t{512} << 20;

// Returns bytes [begin, end) of the file.
using GgufRead = absl::FunctionRef<absl::StatusOr<std::string>(uint64_t begin,
                                                               uint64_t end)>;

// Reads a file's header from its beginning, and no byte behind the MiB in which
// it ends. Errors are those of `read`; kInvalidArgument names the key or the
// tensor that breaks the format: a count or a length beyond the file or a
// limit, an unknown type, a tensor that is there twice, is cut, overlaps
// another or does not begin at a multiple of the alignment. kUnimplemented
// names a version or a type of tensors that is not known.
absl::StatusOr<GgufHeader> ReadGgufHeader(uint64_t file_bytes, GgufRead read);

}  // namespace sluice
