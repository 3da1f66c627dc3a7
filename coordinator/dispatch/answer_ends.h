#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/text/tokenizer/tokenizer.h"

namespace sluice {

// The tokens that end an answer of a request that does not ignore them.
struct AnswerEnds {
  std::vector<int32_t> tokens;
  // The same for people, as `answers end at "</s>" (2)`, and what else there is
  // to know about it.
  std::string text;
};

// Returns the ends that the model's configuration names, and the tokenizer's
// eos_token, if it is a token of the model: as vLLM, while transformers leaves
// the latter out. `vocab_size` is the model's.
AnswerEnds FindAnswerEnds(std::vector<int32_t> of_model,
                          const Tokenizer& tokenizer, int32_t vocab_size);

}  // namespace sluice
