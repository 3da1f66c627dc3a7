#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/step_plan.h"
#include "common/types.h"
#include "coordinator/request.h"

namespace sluice {

class BlockDriver;

// A search for the most likely answers to a prompt: of all beams' continuations
// by a token, the best ones are the next beams. As transformers'
// generate(num_beams=width) has it, in float32, too; of equally good ones the
// one of the earlier beam, and of one beam's the token that comes first among
// its likeliest. Thread-compatible.
class BeamSearch {
 public:
  struct Options {
    int32_t width = 1;       // beams, and answers
    int32_t max_tokens = 1;  // of an answer
    BeamParams params;
    absl::flat_hash_set<int32_t> ends;  // tokens that end an answer
  };
  struct Beam {
    std::vector<int32_t> tokens;  // behind the prompt
    float score = 0;              // the sum of their log-probabilities
  };
  struct Answer {
    std::vector<int32_t> tokens;  // without the token that ended it
    bool ended = false;           // by such a token
    float score = 0;
  };

  explicit BeamSearch(Options options);

  // The beams to be continued, the best first; empty once the search has ended.
  const std::vector<Beam>& beams() const { return beams_; }
  // Each beam's likeliest tokens decide: as many as these, the end's among
  // them.
  int32_t candidates() const {
    return options_.width + static_cast<int32_t>(options_.ends.size());
  }

  // Takes the likeliest tokens of each beam, the likeliest first, of which
  // there are candidates(), or fewer if others are impossible.
  void Advance(std::span<const std::vector<TokenLogprob>> likeliest);

  // Returns the answers, the best first. REQUIRES: the search has ended.
  std::vector<Answer> TakeAnswers() { return std::move(answers_); }

 private:
  bool CanImprove() const;

  Options options_;
  std::vector<Beam> beams_ = {Beam()};
  std::vector<Answer> answers_;
};

// A request that is answered by a beam search. Each beam is a sequence of its
// own, which ends with the next token: its likeliest ones are told, and when
// all beams' are known, the next beams begin.
struct BeamGroup {
  Request request;
  BeamSearch search;
  absl::Duration taken_at;
  std::vector<std::vector<TokenLogprob>> likeliest;  // of each beam
  int64_t missing = 1;                               // beams without theirs
  bool ended = false;
  // What of the prompt was computed, and what others had computed.
  int32_t prefilled = 0;
  int32_t cached = 0;
  // What drivers keep of ended beams for the next ones.
  std::vector<std::pair<BlockDriver*, SequenceId>> kept;
};

}  // namespace sluice
