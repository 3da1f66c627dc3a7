#pragma once

#include "common/float16.h"
#include "runtime/quant/group_codec.h"

namespace sluice {

// Computes the formula of group_codec.h.
inline float DequantizeCode(GroupParams group, float unit, int code) {
  return Float16ToFloat(group.min) * unit +
         static_cast<float>(code) * (Float16ToFloat(group.scale) * unit);
}

}  // namespace sluice
