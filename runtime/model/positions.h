#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// How many positions a model has (spec.max_positions: max_position_embeddings,
// or as many as linear or YaRN scaling stretches the original ones to) and what
// keeps it from more, to follow "the model ". `config_json` is the text that
// `spec` was read from.
std::string DescribePositions(const DecoderSpec& spec,
                              absl::string_view config_json);

}  // namespace sluice
