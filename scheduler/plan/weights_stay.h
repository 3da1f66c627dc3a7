#pragma once

#include <string>

#include "scheduler/plan/plan.h"

namespace sluice {

// Ranks keep their weights, and exchange rows, in prefill as in decoding. The
// alternative for steps of many rows is that each rank has some of the rows,
// and gathers the others' weights for them ("Efficiently Scaling Transformer
// Inference", section 3.2.3): bytes then grow with the weights instead of the
// rows. Returns a sentence with what both would take for the prefill steps of
// the plan's stage that has most ranks, and how much of such a step gathering
// could save at most; "" if no stage has several ranks.
//
// Gathering is not built. It has fewer bytes only beyond about 1.3 rows for
// each element of the hidden state (a layer's weights are about 24 hidden^2
// bytes in 16 bits, what a row exchanges 18 hidden), so thousands in one sweep;
// and a row's computing grows with hidden^2, its exchange with hidden. Ranks of
// one memory would read each weight from there as often as there are ranks,
// where now each is read once: what is said of them is an upper bound.
std::string WhyWeightsStay(const PlanRequest& request, const Plan& plan);

}  // namespace sluice
