#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "absl/status/status.h"
#include "common/types.h"
#include "runtime/kernels/cuda/attention_types.h"

// Which file has the kernels of which format. Each function picks the one for
// the head size; the rest of the choice is its name.

namespace sluice {

struct LaunchSize {
  dim3 grid;
  int threads = 0;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

// Heads up to this size have kernels of their own, with fewer registers.
inline constexpr int kSmallHeadDim = 128;

// On tensor cores. `type` says how bfloat16 is multiplied.
absl::Status DecodeBf16(const DecodeArgs& args, MmaType type, bool scores_only,
                        const LaunchSize& size);
absl::Status DecodeInt8(const DecodeArgs& args, bool scores_only,
                        const LaunchSize& size);
absl::Status DecodeInt4(const DecodeArgs& args, bool scores_only,
                        const LaunchSize& size);
absl::Status PrefillBf16(const PrefillArgs& args, MmaType type,
                         const LaunchSize& size);
absl::Status PrefillInt8(const PrefillArgs& args, const LaunchSize& size);
absl::Status PrefillInt4(const PrefillArgs& args, const LaunchSize& size);

// In float32 arithmetic, any format. Blocks of one head or of kFmaRows.
inline constexpr int kFmaRows = 8;
absl::Status DecodeFloat32(KvFormat format, const DecodeArgs& args,
                           bool scores_only, const LaunchSize& size);
absl::Status PrefillFloat32(KvFormat format, const PrefillArgs& args,
                            const LaunchSize& size);

// The rest of a split decode: puts the splits together.
absl::Status CombineSplits(const DecodeArgs& args, int sequences,
                           cudaStream_t stream);

// The rest of sparse attention, from args.scores, which it overwrites; kept:
// [sequences, num_heads, score_stride].
absl::Status AttendKept(KvFormat format, const DecodeArgs& args, float sparsity,
                        int sequences, int* kept, cudaStream_t stream);

}  // namespace sluice
