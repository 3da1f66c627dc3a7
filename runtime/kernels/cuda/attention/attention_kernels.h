#pragma once

#include "common/number_format.h"
#include "runtime/kernels/cuda/attention/attention_types.h"

// Which file has the kernels of which format. Each function picks the one for
// the head size, up to kMaxHeadDim; the rest of the choice is its name. They
// are launched by attention.cc: the files that nvcc compiles, once for each
// generation of devices, are spared what launches need.

namespace sluice {

using DecodeKernel = void (*)(DecodeArgs);
using PrefillKernel = void (*)(PrefillArgs);

// Heads up to this size have kernels of their own, with fewer registers.
inline constexpr int kSmallHeadDim = 128;

// `head_dim` if it has tensor-core kernels of its own, 0 otherwise: sizes that
// most models have.
constexpr int WholeHeadDim(KvFormat format, int head_dim) {
  const bool whole =
      head_dim == 64 || head_dim == 128 ||
      ((format == KvFormat::kBFloat16 || format == KvFormat::kFloat16) &&
       (head_dim == 80 || head_dim == 96));
  return whole ? head_dim : 0;
}

// Returns the head size that the tensor-core kernel for this one has room for.
constexpr int KernelHeadDim(KvFormat format, int head_dim) {
  if (WholeHeadDim(format, head_dim) != 0) return head_dim;
  return head_dim <= kSmallHeadDim ? kSmallHeadDim : kMaxHeadDim;
}

// On tensor cores. `type` says how bfloat16 is multiplied. Blocks of up to
// kDecodeThreads.
DecodeKernel DecodeBf16(MmaType type, int head_dim, bool scores_only);
DecodeKernel DecodeFp16(int head_dim, bool scores_only);
DecodeKernel DecodeInt8(int head_dim, bool scores_only);
DecodeKernel DecodeInt4(int head_dim, bool scores_only);
// Blocks of up to kPrefillThreads.
PrefillKernel PrefillBf16(MmaType type, int head_dim);
PrefillKernel PrefillFp16(int head_dim);
PrefillKernel PrefillInt8(int head_dim);
PrefillKernel PrefillInt4(int head_dim);

// In float32 arithmetic, any format. Blocks of one head or of kFmaRows.
inline constexpr int kFmaRows = 8;
DecodeKernel DecodeFloat32(KvFormat format, int head_dim, int heads,
                           bool scores_only);
PrefillKernel PrefillFloat32(KvFormat format, int head_dim);

// The rest of a split decode: puts the splits together. A block for each
// sequence and query head.
inline constexpr int kCombineThreads = 128;
DecodeKernel CombineSplits();

// The rest of sparse attention, once there are scores: a block of kKeptThreads
// with KeptSharedBytes for each sequence and query head.
using KeptKernel = void (*)(KeptArgs);
KeptKernel AttendKept(KvFormat format);

}  // namespace sluice
