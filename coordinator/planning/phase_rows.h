#pragma once

namespace sluice {

// Tokens to compute, or computed, by what they are for.
struct PhaseRows {
  double prompt = 0;
  double answer = 0;

  double all() const { return prompt + answer; }
  // The share of prompts; 0 of nothing.
  double prompt_share() const { return all() > 0 ? prompt / all() : 0; }
  friend PhaseRows operator-(const PhaseRows& a, const PhaseRows& b) {
    return {a.prompt - b.prompt, a.answer - b.answer};
  }
  friend bool operator==(const PhaseRows&, const PhaseRows&) = default;
};

}  // namespace sluice
