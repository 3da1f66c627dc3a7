#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/step_plan.h"
#include "coordinator/dispatch/beam_search.h"
#include "coordinator/request.h"
#include "runtime/text/detokenizer.h"
#include "runtime/text/stop_strings.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace sluice {

// One request being generated: the tokens known so far and the rules by which
// it ends. Survives plan epochs. Thread-compatible.
class SequenceState {
 public:
  // `eos_tokens` and `tokenizer` must outlive the sequence. It goes on from the
  // request's known tokens; if these can't be its own, as it would have ended
  // with them, it begins from its prompt.
  SequenceState(Request request, const absl::flat_hash_set<int32_t>* eos_tokens,
                const Tokenizer* tokenizer, absl::Duration taken_at);

  // Adds the next sampled token. Returns true if the sequence ended with it: a
  // token that is -1 (the logits were not numbers), an end-of-sequence or stop
  // token, a stop string, or max_tokens, in this order.
  bool Append(SampledToken sampled);

  // The first position of the prompt that is still to be scored; the prompt's
  // size if none is.
  int32_t scored_until() const { return scored_until_; }
  // Adds scores from scored_until() on. REQUIRES: none beyond the prompt.
  // Returns true if the sequence ended: with an error, as the logits were not
  // numbers, or because nothing is to be generated and all is scored.
  bool AddScores(const TokenScores& scores);

  // Takes what was pooled of the prompt: the sequence ended, with an error if
  // these are not numbers. REQUIRES: the request pools.
  void SetPooled(std::vector<float> values);

  // End the sequence from outside: with an error, or with the text so far as if
  // max_tokens had been reached.
  void Fail(absl::Status status);
  void EndNow() { End(FinishReason::kLength); }

  // Returns the tokens since the last call, and those that the request came
  // with never: whoever stored these has them.
  NewTokens TakeNewTokens();
  bool has_new_tokens() const { return kept_ < answer_tokens(); }

  // The result, once ended. The sequence is of no use afterwards.
  FinishedRequest TakeFinished();

  const Request& request() const { return request_; }
  // The request as it came, of which nothing was computed since. The sequence
  // is of no use afterwards.
  Request TakeRequest();
  // Prompt and generated tokens.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  // The number of tokens to be in the KV cache: all that predict something.
  int32_t known_tokens() const {
    return static_cast<int32_t>(tokens_.size()) - (only_scores() ? 1 : 0);
  }
  // Whether nothing is generated, but the prompt's tokens are scored.
  bool only_scores() const {
    return request_.max_tokens <= 0 && !request_.pools();
  }
  // Whether no model is needed.
  bool needs_nothing() const {
    return only_scores() &&
           scored_until_ == static_cast<int32_t>(request_.prompt.size());
  }
  // The maximum of positions that the sequence may need: a beam's token is one
  // of the beams after it. And that these may need, too.
  int32_t max_positions() const {
    return beams == nullptr ? most_positions()
                            : static_cast<int32_t>(request_.prompt.size());
  }
  int32_t most_positions() const;
  SequenceAdmission Admission(SequenceId id) const;
  // Returns the first tokens of those that are known whose own results nobody
  // wants: another sequence may have computed them.
  std::span<const int32_t> SharedTokens() const;
  absl::Duration taken_at() const { return taken_at_; }

  // Of a beam: its request's others, and its place among these. Else null.
  std::shared_ptr<BeamGroup> beams;
  int32_t beam = 0;
  // Whether nothing of the request was computed before.
  bool begins() const {
    return beams == nullptr ||
           request_.prompt.size() == beams->request.prompt.size();
  }
  // The request that it is for.
  const Request& whole() const {
    return beams == nullptr ? request_ : beams->request;
  }

  bool admitted = false;      // to a block of the present epoch
  bool was_admitted = false;  // ever
  int32_t prefilled = 0;      // positions of the prompt computed, ever
  // Positions of the prompt that others had computed, at its first admission.
  int32_t cached = 0;

 private:
  // Watches for stop strings; only for requests that have some.
  struct StopWatch {
    IncrementalDetokenizer detokenizer;
    StopStringMatcher matcher;
    std::string text;
  };

  void End(FinishReason reason);
  void Begin();
  bool GoOnFrom(const AnswerTokens& known);
  int32_t answer_tokens() const {
    return static_cast<int32_t>(tokens_.size() - request_.prompt.size());
  }

  Request request_;
  const absl::flat_hash_set<int32_t>* eos_tokens_;
  const Tokenizer* tokenizer_;
  absl::Duration taken_at_;
  std::vector<int32_t> tokens_;
  int32_t scored_until_ = 0;
  int32_t kept_ = 0;  // tokens of the answer that were taken to be stored
  Generation generation_;
  std::unique_ptr<StopWatch> stop_;
};

}  // namespace sluice
