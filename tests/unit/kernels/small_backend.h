#pragma once

#include "absl/status/statusor.h"
#include "runtime/kernels/backend_parts.h"

namespace sluice {

// The CPU's backend for the only layer of a model, with two threads; `budget`
// must outlive it.
inline absl::StatusOr<BackendParts> SmallBackend(const DecoderSpec& spec,
                                                 DType dtype,
                                                 WeightFormat format,
                                                 MemoryBudget* budget,
                                                 int32_t max_model_len = 64) {
  BackendOptions options;
  options.layers = {0, 1};
  options.dtype = dtype;
  options.weight_format = format;
  options.kv_format = UnquantizedKvFormat(dtype);
  options.max_rows = 16;
  options.max_model_len = max_model_len;
  options.threads = 2;
  options.budget = budget;
  return CreateBackend(BackendKind::kCpu, spec, options);
}

}  // namespace sluice
