#include "runtime/kernels/cuda/attention_launch.h"
#include "runtime/kernels/cuda/decode_launch.cuh"

namespace sluice {

absl::Status DecodeInt4(const DecodeArgs& args, bool scores_only,
                        const LaunchSize& size) {
  return LaunchDecodeMma<KvFormat::kInt4, MmaType::kHalf>(args, scores_only,
                                                          size);
}

}  // namespace sluice
