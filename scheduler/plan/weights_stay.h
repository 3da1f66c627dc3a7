#pragma once

#include <string>

#include "scheduler/plan/plan.h"

namespace sluice {

// Ranks keep their weights, and exchange rows, in prefill as in decoding. The
// alternative for steps of many rows is that each rank has some of the rows,
// and gathers the others' weights for them ("Efficiently Scaling Transformer
// Inference", section 3.2.3): bytes then grow with the weights instead of the
// rows. Returns a sentence with what both would take for the prefill steps of
// the plan's stage that has most to exchange; "" if no stage has several ranks.
//
// Gathering is not built: ranks of one memory read all weights from there in
// any case, and would read each as often as there are ranks, where now each is
// read once; and between GPUs it pays only beyond about 1.3 rows for each
// element of the hidden state (a layer's weights are about 24 hidden^2 bytes in
// 16 bits, what a row exchanges 18 hidden), so thousands in one sweep, where
// computing takes longer than either exchange. The sentence says when it would
// be less.
std::string WhyWeightsStay(const PlanRequest& request, const Plan& plan);

}  // namespace sluice
