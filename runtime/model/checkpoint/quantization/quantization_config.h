#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// How codes share scales.
enum class ScaleStrategy { kTensor, kChannel, kGroup, kBlock };

// One way in which weights are stored.
struct QuantizedFormat {
  bool floats = false;  // codes are float8 numbers, or else integers
  int bits = 8;         // of a code
  ScaleStrategy strategy = ScaleStrategy::kChannel;
  int32_t group_size = 0;                     // columns, of kGroup
  int32_t block_rows = 0, block_columns = 0;  // of kBlock
  bool symmetric = true;                      // there are no zero points
  friend bool operator==(const QuantizedFormat&,
                         const QuantizedFormat&) = default;
};

// What config.json says of quantized weights. Which weights are quantized is
// told by the files: a weight that is stored plainly is one, be it named by
// modules_to_not_convert or ignore or not.
struct QuantizationConfig {
  enum class Method { kNone, kFp8, kGptq, kAwq, kMxFp4, kCompressedTensors };

  Method method = Method::kNone;
  // In the order of the file; more than one only of kCompressedTensors.
  std::vector<QuantizedFormat> formats;
  // Of kGptq: zero points are stored less 1 (checkpoint_format "gptq").
  bool zeros_less_one = false;
  // What is meant to be quantized, too, and is not.
  bool activations = false;
  bool kv_cache = false;

  bool quantized() const { return method != Method::kNone; }
  // Returns the format in words, "FP8, 128 x 128 blocks"; "" without one.
  std::string Description() const;
  // Returns a text that is another one if weights are read otherwise.
  std::string Key() const;
};

// Reads quantization_config (or compression_config, as older files call it) of
// config.json, or of its text_config. kInvalidArgument names the key that is
// missing, of the wrong type or out of range; kUnimplemented names a method or
// format that is not supported.
absl::StatusOr<QuantizationConfig> ParseQuantizationConfig(
    const nlohmann::json& config);
// Does so with config.json's text.
absl::StatusOr<QuantizationConfig> ParseQuantizationText(
    absl::string_view config_json);

}  // namespace sluice
