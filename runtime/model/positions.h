#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// Describes a model's positions (spec.max_positions: max_position_embeddings,
// or the original ones stretched by linear or YaRN scaling) and the reason for
// the limit, to follow "the model ". `config_json` is the text that `spec` was
// read from.
std::string DescribePositions(const DecoderSpec& spec,
                              absl::string_view config_json);

}  // namespace sluice
