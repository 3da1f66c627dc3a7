#pragma once

#include <span>

#include "runtime/model/decoder_spec.h"
#include "runtime/placement/backend_space.h"

namespace sluice {

// Chooses a row's experts, as MixtureSpec says, by its `logits`, [experts],
// which are overwritten. `choice_bias`, [experts], is null if there is none.
// `out` has room for experts_per_token, which come in the order of their
// numbers. All sums are in float32, from the first expert to the last. Of
// numbers that are none (NaN) any experts are chosen, but different ones.
void ChooseExperts(const MixtureSpec& mixture, std::span<float> logits,
                   const float* choice_bias, std::span<ExpertChoice> out);

}  // namespace sluice
