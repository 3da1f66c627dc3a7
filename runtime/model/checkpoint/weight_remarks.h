#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// Returns what a user should know of these weights, though the model runs, a
// sentence each: tensors that several files hold, biases that are missing and
// taken as 0, and biases that the model's description has no use for.
std::vector<std::string> WeightRemarks(const DecoderSpec& spec,
                                       const SafetensorsSource& source);

// Checks that the weights have all tensors that the description needs, in the
// right form: the error of Check for the first that is not.
absl::Status CheckTensors(const DecoderSpec& spec,
                          const SafetensorsSource& source);

}  // namespace sluice
