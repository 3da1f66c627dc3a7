#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/model/checkpoint/tensor_names.h"

namespace sluice {

// Where weights come from. Thread-safe.
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

  // Checks presence, shape and dtype without reading data; the same errors.
  virtual absl::Status Check(const TensorRef& ref) const = 0;

  // A text that is another one if any weight is another one, at most 200 bytes:
  // the key of what is derived from the weights. May have to read them all;
  // `cache_file` (made if missing) remembers what was found, for files that
  // have not been touched since.
  //
  // `progress` is called after each piece that was read, of a few MiB; if it
  // returns an error, that is ContentId's. Other errors: kDataLoss (an
  // unreadable file), kAborted (one that changed while it was read).
  using Progress = absl::FunctionRef<absl::Status(uint64_t bytes)>;
  virtual absl::StatusOr<std::string> ContentId(const std::string& cache_file,
                                                Progress progress) const = 0;
};

}  // namespace sluice
