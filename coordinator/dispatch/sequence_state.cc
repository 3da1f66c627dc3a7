#include "coordinator/dispatch/sequence_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/status_macros.h"

namespace sluice {

SequenceState::SequenceState(Request request,
                             const absl::flat_hash_set<int32_t>* eos_tokens,
                             const Tokenizer* tokenizer,
                             absl::Duration taken_at)
    : request_(std::move(request)),
      eos_tokens_(eos_tokens),
      tokenizer_(tokenizer),
      taken_at_(taken_at) {
  const AnswerTokens known = std::exchange(request_.known, {});
  Begin();
  if (!known.tokens.empty() && !GoOnFrom(known)) Begin();
  kept_ = answer_tokens();
}

void SequenceState::Begin() {
  tokens_ = request_.prompt;
  scored_until_ = static_cast<int32_t>(request_.prompt.size());
  generation_ = Generation();
  stop_.reset();
  if (request_.scores_prompt()) {
    scored_until_ = std::min(scored_until_, 1);
    generation_.prompt_scores.begin = 1;
    generation_.prompt_scores.num_top = request_.sampling.logprobs;
  }
  if (!request_.stop.empty()) {
    stop_ = std::make_unique<StopWatch>(
        StopWatch{IncrementalDetokenizer(tokenizer_, true, request_.prompt),
                  StopStringMatcher(request_.stop), ""});
  }
}

bool SequenceState::GoOnFrom(const AnswerTokens& known) {
  const bool logprobs = request_.sampling.logprobs >= 0;
  if (logprobs && known.logprobs.size() != known.tokens.size()) return false;
  for (size_t i = 0; i < known.tokens.size(); ++i) {
    SampledToken token;
    if (logprobs) token = known.logprobs[i];
    token.token = known.tokens[i];
    if (Append(std::move(token))) return false;
  }
  return true;
}

NewTokens SequenceState::TakeNewTokens() {
  NewTokens taken = {request_.job, request_.index, kept_, {}, request_.part};
  taken.answer.tokens.assign(tokens_.end() - (answer_tokens() - kept_),
                             tokens_.end());
  if (request_.sampling.logprobs >= 0) {
    taken.answer.logprobs.assign(generation_.logprobs.begin() + kept_,
                                 generation_.logprobs.end());
  }
  kept_ = answer_tokens();
  return taken;
}

Request SequenceState::TakeRequest() {
  if (beams != nullptr) return std::move(beams->request);
  request_.known.tokens.assign(tokens_.begin() + request_.prompt.size(),
                               tokens_.end());
  request_.known.logprobs = std::move(generation_.logprobs);
  return std::move(request_);
}

int32_t SequenceState::most_positions() const {
  return static_cast<int32_t>(whole().prompt.size()) +
         std::max(whole().max_tokens, 0);
}

SequenceAdmission SequenceState::Admission(SequenceId id) const {
  return {id, static_cast<int32_t>(request_.prompt.size()), max_positions(),
          request_.sampling, request_.pooling};
}

std::span<const int32_t> SequenceState::SharedTokens() const {
  if (request_.pools()) return {};
  // A position's score is of the row before it.
  const int32_t end =
      scored_until_ < static_cast<int32_t>(request_.prompt.size())
          ? std::min(scored_until_, known_tokens())
          : known_tokens();
  return std::span<const int32_t>(tokens_).first(
      static_cast<size_t>(std::max(0, end - 1)));
}

bool SequenceState::AddScores(const TokenScores& scores) {
  TokenScores& all = generation_.prompt_scores;
  const auto bad = std::find_if(scores.logprobs.begin(), scores.logprobs.end(),
                                [](float x) { return std::isnan(x); });
  if (bad != scores.logprobs.end()) {
    generation_.status = Internal(
        "the model's output at position ",
        scores.begin + (bad - scores.logprobs.begin()), " is not a number");
    return true;
  }
  // Reserves all at once, as growing could take twice the memory.
  all.logprobs.reserve(request_.prompt.size() - 1);
  all.top.reserve((request_.prompt.size() - 1) * all.num_top);
  all.logprobs.insert(all.logprobs.end(), scores.logprobs.begin(),
                      scores.logprobs.end());
  all.top.insert(all.top.end(), scores.top.begin(), scores.top.end());
  scored_until_ += static_cast<int32_t>(scores.logprobs.size());
  if (!needs_nothing()) return false;
  End(FinishReason::kLength);
  return true;
}

void SequenceState::SetPooled(std::vector<float> values) {
  if (!std::all_of(values.begin(), values.end(),
                   [](float x) { return std::isfinite(x); })) {
    generation_.status =
        absl::InternalError("the model's hidden states are not numbers");
    return;
  }
  generation_.pooled = std::move(values);
  End(FinishReason::kStop);
}

bool SequenceState::Append(SampledToken sampled) {
  ++generation_.generated;
  if (sampled.token < 0) {
    generation_.status = Internal("the model's output at position ",
                                  tokens_.size(), " is not a number");
    return true;
  }
  const int32_t token = sampled.token;
  if (request_.sampling.logprobs >= 0) {
    generation_.logprobs.push_back(std::move(sampled));
  }
  if ((!request_.ignore_eos && eos_tokens_->contains(token)) ||
      std::find(request_.stop_tokens.begin(), request_.stop_tokens.end(),
                token) != request_.stop_tokens.end()) {
    End(FinishReason::kStop);
    return true;
  }
  tokens_.push_back(token);
  if (stop_ != nullptr) {
    stop_->text += stop_->matcher.Append(stop_->detokenizer.Append(token));
    if (stop_->matcher.stopped()) {
      End(FinishReason::kStop);
      return true;
    }
  }
  if (generation_.generated >= request_.max_tokens) {
    End(FinishReason::kLength);
    return true;
  }
  return false;
}

void SequenceState::End(FinishReason reason) {
  generation_.finish_reason = reason;
  if (stop_ == nullptr || stop_->matcher.stopped()) return;
  stop_->text += stop_->matcher.Append(stop_->detokenizer.Flush());
  if (stop_->matcher.stopped()) {
    generation_.finish_reason = FinishReason::kStop;
  } else {
    stop_->text += stop_->matcher.Flush();
  }
}

void SequenceState::Fail(absl::Status status) {
  generation_.status = std::move(status);
}

FinishedRequest SequenceState::TakeFinished() {
  generation_.tokens.assign(tokens_.begin() + request_.prompt.size(),
                            tokens_.end());
  generation_.cached_tokens = cached;
  if (stop_ != nullptr) generation_.text = std::move(stop_->text);
  generation_.decode =
      stop_ == nullptr && generation_.status.ok() && !request_.pools();
  return {std::move(request_), std::move(generation_)};
}

}  // namespace sluice
