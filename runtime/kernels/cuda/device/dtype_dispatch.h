#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "common/number_format.h"

namespace sluice {

// Calls fn with a null pointer to the element type of a dtype.
template <typename Fn>
auto WithElement(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::kBFloat16:
      return fn(static_cast<__nv_bfloat16*>(nullptr));
    case DType::kFloat16:
      return fn(static_cast<__half*>(nullptr));
    case DType::kFloat32:
      break;
  }
  return fn(static_cast<float*>(nullptr));
}

// The T of WithElement's pointer.
template <typename Pointer>
using ElementOf = std::remove_pointer_t<Pointer>;

}  // namespace sluice
