#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// Returns what a user should know of these weights, though the model runs, a
// sentence each: tensors that several files hold, biases that are missing and
// taken as 0, biases that the model's description has no use for, and
// what its quantization means of activations and the KV cache.
std::vector<std::string> WeightRemarks(const DecoderSpec& spec,
                                       const SafetensorsSource& source);

// Checks that the weights have all tensors that the description needs, in the
// right form: the error of Check for the first that is not.
absl::Status CheckTensors(const DecoderSpec& spec,
                          const SafetensorsSource& source);

}  // namespace sluice
