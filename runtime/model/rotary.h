#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// The key of the text part in the config.json of a model that also takes
// something else.
inline constexpr char kTextConfig[] = "text_config";

// The positions that linear and YaRN scaling reach.
struct PositionStretch {
  int32_t positions = 0;  // original ones times the factor; 0: other types
  // Whether linear scaling does not tell the original length: some write that
  // as max_position_embeddings, others the length after scaling.
  bool uncertain = false;
  // LongRoPE takes other frequencies for sequences that are longer than this,
  // which a sequence that is replayed could not know; 0: no limit.
  int32_t limit = 0;
};

// What is rotated: so many dimensions of a head, from the first on, and whether
// the family knows partial_rotary_factor.
struct RotaryShape {
  int32_t dim;
  bool partial = false;
  int32_t max_positions;
  double theta = 10000;  // where rope_theta is absent
};

// Rotary frequencies of a config.json, in the float32 arithmetic of Hugging
// Face transformers (modeling_rope_utils.py), operation by operation; only
// powf may differ from theirs in the last bit.
//
// Settings come from rope_scaling (and top-level rope_theta), else from
// rope_parameters, which may be nested by layer type; nested settings must
// agree for all `layer_types` in use. Types: default, linear, llama3, yarn;
// dynamic, which changes nothing up to `max_positions` (beyond it transformers
// takes other frequencies for each length, and keys of earlier steps keep
// theirs, so that a sequence that is replayed would come out otherwise);
// longrope up to the
// positions from which it has its long factors.
//
absl::StatusOr<RotarySpec> ParseRotary(
    const nlohmann::json& config, const RotaryShape& shape,
    const std::vector<std::string>& layer_types, PositionStretch* stretch);

// Describes a model's positions (spec.max_positions: max_position_embeddings,
// or the original ones stretched by linear or YaRN scaling) and the reason for
// the limit, to follow "the model ". `config_json` is the text that `spec` was
// read from.
std::string DescribePositions(const DecoderSpec& spec,
                              absl::string_view config_json);

}  // namespace sluice
