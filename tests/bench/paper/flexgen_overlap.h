#pragma once

#include "scheduler/cost/cost_model.h"

namespace sluice {

// Seconds of a step of FlexGen's schedule (section 4.2, figure 4), a
// CostOptions::seconds: a barrier after each micro-batch of each half of a
// layer (attention and MLP are layers of their own there, so activations move
// twice in a layer: activation_turns); the weights of the next half come during
// the first micro-batch alone; device and host compute in turn.
double BarrierSeconds(const StepParts& parts, const Fractions& fractions);

}  // namespace sluice
