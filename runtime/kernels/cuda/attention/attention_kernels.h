#pragma once

#include "common/number_format.h"
#include "runtime/kernels/cuda/attention/attention_types.h"

// The kernels of each format have a file of their own. Each function picks the
// one for the head size, up to kMaxHeadDim; the rest of the choice is its name.
// The kernels are launched by attention.cc: the files that nvcc compiles, once
// for each generation of devices, are spared what launches need.

namespace sluice {

using DecodeKernel = void (*)(DecodeArgs);
using PrefillKernel = void (*)(PrefillArgs);

// Heads up to this size have kernels of their own, with fewer registers.
inline constexpr int kSmallHeadDim = 128;

// Returns `head_dim` if it has tensor-core kernels of its own, 0 otherwise:
// sizes that most models have.
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

// Each returns a decode kernel on tensor cores, for blocks of up to
// kDecodeThreads. `type` says how bfloat16 is multiplied.
DecodeKernel DecodeBf16(MmaType type, int head_dim, bool scores_only);
DecodeKernel DecodeFp16(int head_dim, bool scores_only);
DecodeKernel DecodeInt8(int head_dim, bool scores_only);
DecodeKernel DecodeInt4(int head_dim, bool scores_only);
// Each returns a prefill kernel on tensor cores, for up to kPrefillThreads.
PrefillKernel PrefillBf16(MmaType type, int head_dim);
PrefillKernel PrefillFp16(int head_dim);
PrefillKernel PrefillInt8(int head_dim);
PrefillKernel PrefillInt4(int head_dim);

// Both return kernels in float32 arithmetic, of one head or of kFmaRows.
inline constexpr int kFmaRows = 8;
DecodeKernel DecodeFloat32(KvFormat format, int head_dim, int heads,
                           bool scores_only);
PrefillKernel PrefillFloat32(KvFormat format, int head_dim);

// Returns the kernel that puts the splits of a decode together, with a block
// for each sequence and query head.
inline constexpr int kCombineThreads = 128;
DecodeKernel CombineSplits();

// Returns the kernel that ends sparse attention once there are scores: a block
// of kKeptThreads with KeptSharedBytes for each sequence and query head.
using KeptKernel = void (*)(KeptArgs);
KeptKernel AttendKept(KvFormat format);

}  // namespace sluice
