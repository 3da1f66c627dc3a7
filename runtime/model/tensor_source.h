#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/model/tensor_names.h"

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
};

}  // namespace sluice
