#pragma once

// Number formats. They have a header of their own, so that device code, which
// is compiled for each generation of devices, includes little else;
// common/types.h reads and writes their names.

namespace sluice {

// Number format of weights in computation and of the KV cache. Accumulation and
// the residual stream are always float32.
enum class DType { kFloat32, kBFloat16, kFloat16 };

// Format of weight matrices: the engine's dtype, or group-wise quantized to 8
// or 4 bits (runtime/quant/group_codec.h).
enum class WeightFormat { kFull, kInt8, kInt4 };

// Number format of the KV cache: as computed, or quantized by groups (see
// KvLayout in runtime/kv/kv_layout.h).
enum class KvFormat { kFloat32, kBFloat16, kFloat16, kInt8, kInt4 };

}  // namespace sluice
