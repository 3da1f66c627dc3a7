#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "runtime/model/checkpoint/quantization/float8_weight.h"
#include "runtime/model/checkpoint/quantization/quantized_weight.h"

namespace sluice {

// The reference is transformers' Fp8Dequantize (integrations/
// finegrained_fp8.py) and, of blocks that are cut by the weight's edge,
// DeepSeek-V3's weight_dequant (inference/kernel.py): code * scale in float32,
// which then becomes what the model computes with.
absl::StatusOr<std::unique_ptr<QuantizedWeight>> OpenFp8Weight(
    const QuantizationConfig& config, const StoredTensors& tensors,
    const WeightPlace& place) {
  const std::string name = place.module + ".weight";
  const auto weight = tensors.Find(name);
  if (!weight || weight->entry->dtype.rfind("F8_", 0) != 0) return nullptr;
  SLUICE_RETURN_IF_ERROR(CheckPart(tensors, place, name, {"F8_E4M3"},
                                   {{place.rows, place.columns}})
                             .status());
  const QuantizedFormat& format = config.formats[0];
  const bool blocks = format.strategy == ScaleStrategy::kBlock;
  std::string scale_name = name + "_scale_inv";
  if (!blocks && !tensors.Find(scale_name)) scale_name = name + "_scale";
  // Without blocks, the file tells whether rows have scales of their own.
  std::vector<std::vector<int64_t>> shapes = ScaleShapes(format, place);
  if (!blocks) {
    for (auto& shape :
         ScaleShapes({.strategy = ScaleStrategy::kTensor}, place)) {
      shapes.push_back(std::move(shape));
    }
  }
  SLUICE_ASSIGN_OR_RETURN(const SafetensorsEntry* scale,
                          CheckPart(tensors, place, scale_name,
                                    {"F32", "BF16", "F16", "F8_E8M0"}, shapes));
  return std::make_unique<Float8Weight>(
      place, scale_name, *scale,
      blocks ? Float8Weight::Block{format.block_rows, format.block_columns}
             : Float8Weight::Block{1, place.columns},
      DType::kFloat32);
}

}  // namespace sluice
