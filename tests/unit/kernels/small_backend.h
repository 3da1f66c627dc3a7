#pragma once

#include "absl/status/statusor.h"
#include "runtime/kernels/backend_factory.h"

namespace sluice {

// The CPU's backend for the only layer of a model, with two threads; `budget`
// must outlive it.
inline absl::StatusOr<BackendParts> SmallBackend(const DecoderSpec& spec,
                                                 DType dtype,
                                                 WeightFormat format,
                                                 MemoryBudget* budget) {
  return CreateBackend(BackendKind::kCpu, spec,
                       {.layers = {0, 1},
                        .dtype = dtype,
                        .weight_format = format,
                        .kv_format = UnquantizedKvFormat(dtype),
                        .max_rows = 16,
                        .max_model_len = 64,
                        .threads = 2,
                        .budget = budget});
}

}  // namespace sluice
