#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace sluice {

// Scratch shared by the samplers of one thread, so that sampling allocates
// nothing in steady state.
struct SamplerScratch {
  std::vector<float> block_maxima;  // of the logits
  std::vector<double> block_sums;   // of the logits' exponentials
  std::vector<int32_t> tokens;      // candidates, by token id
  std::vector<float> weights;       // of the candidates
  std::vector<float> selection;     // to be permuted
  std::vector<std::pair<float, int32_t>> top;
  std::vector<std::pair<int32_t, float>> changed;
};

}  // namespace sluice
