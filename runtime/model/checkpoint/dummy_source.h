#pragma once

#include "absl/status/statusor.h"
#include "runtime/model/checkpoint/tensor_source.h"

namespace sluice {

// Random weights of any shape, always the same: for measuring a model's speed
// from its config.json alone ("--load-format dummy"). Norms are 1 and biases 0;
// matrices are uniform with the standard deviation that keeps activations of
// order 1.
class DummySource final : public TensorSource {
 public:
  absl::Status ReadRows(const TensorRef& ref, int64_t row_begin,
                        int64_t row_end, float* out) const override;
  // Random codes; those of GGUF's formats have scales of 0.
  absl::Status ReadCodes(const TensorRef& ref, const CodeFormat& format,
                         int64_t row_begin, int64_t row_end,
                         std::byte* out) const override;
  absl::Status Check(const TensorRef& ref) const override;
  absl::StatusOr<std::string> ContentId(const std::string& cache_file,
                                        Progress progress) const override;
};

}  // namespace sluice
