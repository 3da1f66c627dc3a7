#include "runtime/kernels/cuda/attention_launch.h"
#include "runtime/kernels/cuda/decode_launch.cuh"

namespace sluice {

absl::Status DecodeBf16(const DecodeArgs& args, MmaType type, bool scores_only,
                        const LaunchSize& size) {
  constexpr auto kFormat = KvFormat::kBFloat16;
  return type == MmaType::kHalf
             ? LaunchDecodeMma<kFormat, MmaType::kHalf>(args, scores_only, size)
             : LaunchDecodeMma<kFormat, MmaType::kBFloat16>(args, scores_only,
                                                            size);
}

}  // namespace sluice
