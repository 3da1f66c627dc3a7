#include "runtime/kernels/cuda/attention/attention_kernels.h"
#include "runtime/kernels/cuda/attention/decode_kernels.cuh"

namespace sluice {
namespace {

// Each block takes a sequence and a query head.
__global__ void __launch_bounds__(kCombineThreads)
    Combine(const DecodeArgs args) {
  const int sequence = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const AttentionSegment segment = args.common.segments[sequence];
  const int head_dim = args.common.block.head_dim;
  const int end = segment.start + 1;
  const int begin =
      args.common.window > 0 ? max(0, end - args.common.window) : 0;
  const int pages = (end + kPageTokens - 1) / kPageTokens - begin / kPageTokens;
  const int splits = (pages + args.pages_per_split - 1) / args.pages_per_split;
  if (splits == 1) return;  // its block wrote the result
  const int64_t row = static_cast<int64_t>(args.common.num_heads);
  const float* parts =
      args.partials + (sequence * row + head) * args.splits * (head_dim + 2);
  float top = -INFINITY;
  for (int i = 0; i < splits; ++i) {
    top = fmaxf(top, parts[i * (head_dim + 2) + head_dim]);
  }
  for (int d = static_cast<int>(threadIdx.x); d < head_dim;
       d += kCombineThreads) {
    float value = 0, sum = 0;
    for (int i = 0; i < splits; ++i) {
      const float* part = parts + i * (head_dim + 2);
      if (part[head_dim] == -INFINITY) continue;
      const float factor = Exp2(part[head_dim] - top);
      value += factor * part[d];
      sum += factor * part[head_dim + 1];
    }
    StoreOut(args.common, (segment.row * row + head) * head_dim + d,
             value / sum);
  }
}

}  // namespace

DecodeKernel CombineSplits() { return Combine; }

}  // namespace sluice
