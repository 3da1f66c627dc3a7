#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "runtime/model/checkpoint/tensor_names.h"
#include "runtime/model/code_format.h"

namespace sluice {

// A source of weights. Thread-safe.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Reads rows [row_begin, row_end) of a tensor (a vector is a single row of
  // its length; row_begin 0, row_end 1) as float32 into `out`, row-major.
  // Errors name the file and the tensor: kNotFound (no such tensor),
  // kInvalidArgument (its shape or dtype is not what `ref` and the runtime
  // expect), kDataLoss (truncated or unreadable file).
  virtual absl::Status ReadRows(const TensorRef& ref, int64_t row_begin,
                                int64_t row_end, float* out) const = 0;

  // Reads the same rows of a matrix as the checkpoint has them coded, one row
  // after the other. `format` is what DecoderSpec names for it. The errors of
  // ReadRows, and kInternal of a tensor that has no codes of this format.
  virtual absl::Status ReadCodes(const TensorRef& ref, const CodeFormat& format,
                                 int64_t row_begin, int64_t row_end,
                                 std::byte* out) const {
    return Internal("tensor ", ref.name, " has no codes of ", format.name);
  }

  // Checks presence, shape and dtype without reading data; the same errors.
  virtual absl::Status Check(const TensorRef& ref) const = 0;

  // Returns a text of at most 200 bytes that changes if any weight does: the
  // key of data derived from the weights. May have to read them all;
  // `cache_file` (made if missing) keeps hashes of files for as long as they do
  // not change.
  //
  // `progress` is called after each piece read, of a few MiB; ContentId returns
  // its error. Other errors: kDataLoss (an unreadable file), kAborted (one that
  // changed while it was read).
  using Progress = absl::FunctionRef<absl::Status(uint64_t bytes)>;
  virtual absl::StatusOr<std::string> ContentId(const std::string& cache_file,
                                                Progress progress) const = 0;
};

}  // namespace sluice
