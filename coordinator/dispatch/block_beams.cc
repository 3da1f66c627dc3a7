// The part of BlockDriver that searches with beams: each is a sequence that
// ends with its next token, and the next beams begin with what was computed of
// the ones before.

#include <algorithm>
#include <memory>
#include <utility>

#include "common/status_macros.h"
#include "coordinator/dispatch/block_driver.h"

namespace sluice {

void BlockDriver::AddBeams(Request request) {
  BeamSearch::Options options = {.width = request.candidates,
                                 .max_tokens = request.max_tokens,
                                 .params = *request.beams};
  if (!request.ignore_eos) options.ends = eos_tokens_;
  options.ends.insert(request.stop_tokens.begin(), request.stop_tokens.end());
  BeamSearch search(std::move(options));
  absl::Status status;
  if (search.candidates() > kMaxBeamCandidates) {
    status = InvalidArgument(
        "a beam search of ", request.candidates, " beams and ",
        search.candidates() - request.candidates,
        " tokens that end an answer needs ", search.candidates(),
        " candidates of each beam, more than the ", kMaxBeamCandidates,
        " there may be; ask for fewer beams, or give fewer \"stop\" tokens");
  } else {
    status = CheckTokens(request);
  }
  const auto group = std::make_shared<BeamGroup>(BeamGroup{
      std::move(request), std::move(search), options_.clock->Monotonic()});
  if (status.ok()) {
    AddBeam(group, 0);
  } else {
    EndBeams(*group, std::move(status));
  }
}

void BlockDriver::AddBeam(const std::shared_ptr<BeamGroup>& group,
                          int32_t beam) {
  const Request& whole = group->request;
  const std::vector<int32_t>& tokens = group->search.beams()[beam].tokens;
  Request request;
  request.job = whole.job;
  request.accepted = whole.accepted;
  request.index = whole.index;
  request.part = whole.part;
  request.priority = whole.priority;
  request.prompt.reserve(whole.prompt.size() + tokens.size());
  request.prompt = whole.prompt;
  request.prompt.insert(request.prompt.end(), tokens.begin(), tokens.end());
  request.max_tokens = 1;
  request.ignore_eos = true;
  request.sampling.logprobs = group->search.candidates();
  SequenceState sequence(std::move(request), &eos_tokens_, options_.tokenizer,
                         group->taken_at);
  sequence.beams = group;
  sequence.beam = beam;
  sequence.was_admitted = !tokens.empty();
  Adopt(std::move(sequence));
}

void BlockDriver::FinishBeam(SequenceId id) {
  const auto it = sequences_.find(id);
  SequenceState sequence = std::move(it->second);
  const std::shared_ptr<BeamGroup> group = sequence.beams;
  sequences_.erase(it);
  if (sequence.admitted && sequence.beam == 0) {
    --jobs_[group->request.job].running;
  }
  if (sequence.begins()) {
    group->prefilled = sequence.prefilled;
    group->cached = sequence.cached;
  }
  const std::vector<int32_t> computed(sequence.SharedTokens().begin(),
                                      sequence.SharedTokens().end());
  const auto beam = static_cast<size_t>(sequence.beam);
  Generation generation = sequence.TakeFinished().generation;
  if (group->ended) {
    if (scheduler_) scheduler_->Finish(id);
    return;
  }
  if (!generation.status.ok()) {
    if (scheduler_) scheduler_->Finish(id);
    EndBeams(*group, std::move(generation.status));
    return;
  }
  group->likeliest.resize(group->search.beams().size());
  group->likeliest[beam] = std::move(generation.logprobs.front().top);
  if (--group->missing > 0) {
    // The next beams are not known yet, but will begin with this one's tokens.
    const SequenceId kept(next_sequence_++);
    scheduler_->Want(kept, computed);
    group->kept.emplace_back(this, kept);
    scheduler_->Finish(id);
    return;
  }
  group->search.Advance(group->likeliest);
  group->likeliest.clear();
  const auto beams = static_cast<int32_t>(group->search.beams().size());
  group->missing = beams;
  for (int32_t b = 0; b < beams && !group->ended; ++b) AddBeam(group, b);
  // Only now, so that what was computed is kept for those.
  if (scheduler_) scheduler_->Finish(id);
  ReleaseKept(group.get());
  if (beams == 0) EndBeams(*group, absl::OkStatus());
}

void BlockDriver::ReleaseKept(BeamGroup* group) {
  for (const auto& [driver, id] : std::exchange(group->kept, {})) {
    if (driver->scheduler_) driver->scheduler_->Unwant(id);
  }
}

// Ends the request, with its answers or with an error.
void BlockDriver::EndBeams(BeamGroup& group, absl::Status status) {
  group.ended = true;
  ReleaseKept(&group);
  // Beams in other drivers end there.
  std::vector<SequenceId> left;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.beams.get() == &group) left.push_back(id);
  }
  std::sort(left.begin(), left.end());
  for (const SequenceId id : left) FinishBeam(id);
  const Request& request = group.request;
  JobProgress& job = jobs_[request.job];
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  job.prompt_tokens += (status.ok() ? prompt : 0) - group.prefilled;
  if (status.ok()) stats_.prompt_tokens += prompt - group.prefilled;
  stats_.latency_seconds.push_back(
      SecondsSince(request.accepted, group.taken_at));
  std::vector<BeamSearch::Answer> answers = group.search.TakeAnswers();
  for (int32_t k = 0; k < request.candidates; ++k) {
    FinishedRequest& finished = finished_.emplace_back();
    finished.request = request;
    finished.request.part += k;
    Generation& generation = finished.generation;
    generation.cached_tokens = group.cached;
    generation.status = status;
    if (!status.ok()) continue;
    if (k >= std::ssize(answers)) {
      generation.status = absl::ResourceExhaustedError(
          "the model's vocabulary has too few tokens for so many beams; ask "
          "for fewer");
      continue;
    }
    auto& [tokens, ended, score] = answers[k];
    generation.finish_reason =
        ended ? FinishReason::kStop : FinishReason::kLength;
    generation.generated =
        static_cast<int32_t>(tokens.size()) + (ended ? 1 : 0);
    generation.tokens = std::move(tokens);
    generation.decode = true;
    job.new_tokens += generation.generated;
    stats_.tokens += generation.generated;
    LearnFrom(finished);
  }
}

}  // namespace sluice
