#pragma once

#include <string>
#include <vector>

#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// Returns what a user should know of these weights, though the model runs, a
// sentence each: tensors that several files hold, biases that are missing and
// taken as 0, and biases that the model's description has no use for.
std::vector<std::string> WeightRemarks(const DecoderSpec& spec,
                                       const SafetensorsSource& source);

}  // namespace sluice
