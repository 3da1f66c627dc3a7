#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/number_format.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/model/layer_weights.h"

// Numbers of weights and of positions' bytes, which time is counted by. What
// lies in memory is a little more: see runtime/placement.

namespace sluice {

int64_t QueryWidth(const DecoderSpec& model);
int64_t KvWidth(const DecoderSpec& model);
// Weights of the head, with the projection of hidden_size to embed_dim, if any.
int64_t HeadElements(const DecoderSpec& model);
// K and V of one position in one layer, parameters of groups included.
double KvBytesPerPosition(const DecoderSpec& model, KvFormat format);
// Bytes of `elements` weights in a format; groups of 64 share two float16.
double WeightBytes(int64_t elements, DType dtype, WeightFormat format);

// kInvalidArgument names the size that makes no sense.
absl::Status CheckModel(const DecoderSpec& model);

}  // namespace sluice
