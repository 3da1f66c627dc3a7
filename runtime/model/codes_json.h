#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "runtime/model/decoder_spec.h"

// The codes that a checkpoint's weights can be kept in, as part of its
// config.json's text, so that whoever plans knows them without the files:
//
//   "kept_codes": {"layers": [["Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q4_K",
//                              "Q6_K", "", "", ""], ...],
//                  "head": "Q6_K", "embedding": "Q6_K"}
//
// A layer's are those of q, k, v, out, gate, up and down, and of experts' gate,
// up and down; "" is none.

namespace sluice {

// Makes what a config.json's text has that of `spec`; without any, it has none.
// REQUIRES: it is an object.
void AddCodes(const DecoderSpec& spec, std::string* config);

// Sets what `config` has. kInvalidArgument names a list of another length than
// the model has layers, and a format that is not known.
absl::Status SetCodes(const nlohmann::json& config, DecoderSpec* spec);

}  // namespace sluice
