#pragma once

#include "runtime/model/decoder_spec.h"
#include "scheduler/cost/model_shape.h"

namespace sluice {

// The sizes in a decoder's description, for the planner.
ModelShape ShapeOf(const DecoderSpec& spec);

}  // namespace sluice
