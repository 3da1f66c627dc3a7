#include "runtime/kernels/cuda/attention_launch.h"
#include "runtime/kernels/cuda/prefill_kernels.cuh"

namespace sluice {
namespace {

template <KvFormat kFormat>
absl::Status LaunchAs(const PrefillArgs& args, const LaunchSize& size) {
  return Launch(args.common.block.head_dim <= kSmallHeadDim
                    ? PrefillFma<kFormat, kFmaRows, kSmallHeadDim / 32>
                    : PrefillFma<kFormat, kFmaRows, kMaxHeadDim / 32>,
                size.grid, dim3(size.threads), size.shared_bytes, size.stream,
                args);
}

}  // namespace

absl::Status PrefillFloat32(KvFormat format, const PrefillArgs& args,
                            const LaunchSize& size) {
  switch (format) {
    case KvFormat::kFloat32:
      return LaunchAs<KvFormat::kFloat32>(args, size);
    case KvFormat::kBFloat16:
      return LaunchAs<KvFormat::kBFloat16>(args, size);
    case KvFormat::kInt8:
      return LaunchAs<KvFormat::kInt8>(args, size);
    case KvFormat::kInt4:
      return LaunchAs<KvFormat::kInt4>(args, size);
  }
  return absl::InternalError("a KV format that no attention kernel knows");
}

}  // namespace sluice
