#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "common/types.h"

namespace sluice {

// Calls fn with a null pointer to the element type of a dtype.
template <typename Fn>
auto WithElement(DType dtype, const Fn& fn) {
  return dtype == DType::kFloat32 ? fn(static_cast<float*>(nullptr))
                                  : fn(static_cast<__nv_bfloat16*>(nullptr));
}

// The T of WithElement's pointer.
template <typename Pointer>
using ElementOf = std::remove_pointer_t<Pointer>;

}  // namespace sluice
