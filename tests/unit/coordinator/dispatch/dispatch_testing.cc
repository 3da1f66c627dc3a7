#include "tests/unit/coordinator/dispatch/dispatch_testing.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "runtime/text/detokenizer.h"

namespace sluice {

Model HashModel(uint64_t eos_every) {
  return [eos_every](uint64_t seed, const std::vector<int32_t>& tokens) {
    uint64_t h = 0x9E3779B97F4A7C15u ^ seed;
    for (int32_t token : tokens) {
      h = (h ^ static_cast<uint64_t>(token)) * 0xBF58476D1CE4E5B9u;
      h ^= h >> 31;
    }
    if (h % eos_every == 0) return FakeTokenizer::kAsciiEos;
    // Few characters, so that stop strings occur.
    return static_cast<int32_t>('a' + (h >> 32) % 4);
  };
}

Model ScriptModel(size_t prompt_tokens, std::string text) {
  return [prompt_tokens, text = std::move(text)](
             uint64_t, const std::vector<int32_t>& tokens) -> int32_t {
    const size_t at = tokens.size() - prompt_tokens;
    if (at >= text.size()) return FakeTokenizer::kAsciiEos;
    return text[at] == '\xff' ? -1 : text[at];
  };
}

float FakeLogprob(std::span<const int32_t> tokens) {
  uint32_t h = 1;
  for (int32_t token : tokens) h = h * 31 + static_cast<uint32_t>(token);
  return -static_cast<float>(h % 4096) / 256;
}

TokenLogprob FakeAlternative(std::span<const int32_t> tokens, int32_t rank) {
  return {(tokens.back() + rank) % FakeTokenizer::kAsciiVocab,
          FakeLogprob(tokens) - static_cast<float>(rank)};
}

Expected Simulate(const Request& request, const Model& model) {
  Expected expected;
  std::vector<int32_t> tokens = request.prompt;
  while (expected.generated < request.max_tokens) {
    const int32_t token = model(request.sampling.seed, tokens);
    ++expected.generated;
    if (token == FakeTokenizer::kAsciiEos && !request.ignore_eos)
      return expected;
    tokens.push_back(token);
    expected.tokens.push_back(token);
    if (token != FakeTokenizer::kAsciiEos) {
      expected.text += static_cast<char>(token);
    }
    size_t stop = std::string::npos;
    for (const std::string& s : request.stop) {
      stop = std::min(stop, expected.text.find(s));
    }
    if (stop != std::string::npos) {
      expected.text.resize(stop);
      return expected;
    }
  }
  expected.finish_reason = FinishReason::kLength;
  return expected;
}

Request MakeRequest(int64_t job, int64_t index, absl::string_view prompt,
                    int32_t max_tokens) {
  Request request;
  request.job = JobId(job);
  request.index = index;
  request.custom_id = std::to_string(index);
  request.prompt.assign(prompt.begin(), prompt.end());
  request.sampling.seed = static_cast<uint64_t>(job * 1000003 + index);
  request.max_tokens = max_tokens;
  return request;
}

void MemoryQueue::Add(std::vector<Request> requests) {
  MutexLock lock(&mu_);
  waiting_.insert(waiting_.begin(), requests.rbegin(), requests.rend());
}

void MemoryQueue::Replace(std::vector<Request> requests) {
  {
    MutexLock lock(&mu_);
    waiting_.clear();
  }
  Add(std::move(requests));
}

void MemoryQueue::GiveBack(std::vector<Request> requests) {
  MutexLock lock(&mu_);
  returned_ += requests.size();
  for (auto it = requests.rbegin(); it != requests.rend(); ++it) {
    waiting_.push_back(std::move(*it));
  }
  changed_.NotifyAll();
}

void MemoryQueue::FailReads(absl::Status status) {
  MutexLock lock(&mu_);
  read_status_ = std::move(status);
}

absl::StatusOr<std::vector<Request>> MemoryQueue::TakeRequests(size_t max) {
  MutexLock lock(&mu_);
  if (!read_status_.ok()) return read_status_;
  std::vector<Request> taken;
  while (taken.size() < max && !waiting_.empty()) {
    taken.push_back(std::move(waiting_.back()));
    waiting_.pop_back();
  }
  taken_ += taken.size();
  largest_take_ = std::max(largest_take_, taken.size());
  changed_.NotifyAll();
  return taken;
}

absl::StatusOr<LengthHistogram> MemoryQueue::PendingLengths() {
  MutexLock lock(&mu_);
  LengthHistogram lengths;
  for (const Request& request : waiting_) {
    lengths.Add(static_cast<int32_t>(request.prompt.size()),
                request.max_tokens);
  }
  return lengths;
}

void MemoryQueue::ReportPlan(const std::string& plan) {
  MutexLock lock(&mu_);
  plans_.push_back(plan);
  changed_.NotifyAll();
}

std::vector<std::string> MemoryQueue::plans() const {
  MutexLock lock(&mu_);
  return plans_;
}

void MemoryQueue::Complete(Request request, Generation generation) {
  if (generation.decode) {
    generation.text =
        DecodeAfter(FakeTokenizer(), request.prompt, generation.tokens, true);
  }
  MutexLock lock(&mu_);
  const bool first = results_
                         .emplace(std::pair(request.job.value(), request.index),
                                  std::move(generation))
                         .second;
  if (!first) ++doubled_;
  changed_.NotifyAll();
}

void MemoryQueue::KeepTokens(std::vector<NewTokens> tokens) {
  MutexLock lock(&mu_);
  for (NewTokens& more : tokens) {
    AnswerTokens& all = kept_[{more.job.value(), more.index}];
    all.tokens.resize(more.begin);
    all.tokens.insert(all.tokens.end(), more.answer.tokens.begin(),
                      more.answer.tokens.end());
    if (!more.answer.logprobs.empty()) all.logprobs.resize(more.begin);
    all.logprobs.insert(all.logprobs.end(), more.answer.logprobs.begin(),
                        more.answer.logprobs.end());
    kept_tokens_ += std::ssize(more.answer.tokens);
  }
  changed_.NotifyAll();
}

void MemoryQueue::WaitForKept(int64_t count) {
  MutexLock lock(&mu_);
  while (kept_tokens_ < count) changed_.Wait(&mu_);
}

std::map<std::pair<int64_t, int64_t>, AnswerTokens> MemoryQueue::kept() const {
  MutexLock lock(&mu_);
  return kept_;
}

void MemoryQueue::ReportProgress(JobId, const JobProgress& progress) {
  MutexLock lock(&mu_);
  tokens_ += progress.new_tokens;
  replays_ += progress.replays;
  changed_.NotifyAll();
}

void MemoryQueue::ReportDetail(const std::string& detail) {
  MutexLock lock(&mu_);
  detail_ = detail;
  changed_.NotifyAll();
}

void MemoryQueue::WaitForResults(size_t count) {
  MutexLock lock(&mu_);
  while (results_.size() < count) changed_.Wait(&mu_);
}

void MemoryQueue::WaitForDetail(const std::string& part) {
  MutexLock lock(&mu_);
  while (!detail_ || !absl::StrContains(*detail_, part)) changed_.Wait(&mu_);
}

bool MemoryQueue::HasDetail(const std::string& part) const {
  MutexLock lock(&mu_);
  return detail_ && absl::StrContains(*detail_, part);
}

void MemoryQueue::WaitForReady() {
  MutexLock lock(&mu_);
  while (detail_ != "") changed_.Wait(&mu_);
}

void MemoryQueue::WaitForTaken(size_t count) {
  MutexLock lock(&mu_);
  while (taken_ < count) changed_.Wait(&mu_);
}

void MemoryQueue::WaitForReturned(size_t count) {
  MutexLock lock(&mu_);
  while (returned_ < count) changed_.Wait(&mu_);
}

void MemoryQueue::WaitForTokens(int64_t count) {
  MutexLock lock(&mu_);
  while (tokens_ < count) changed_.Wait(&mu_);
}

std::map<std::pair<int64_t, int64_t>, Generation> MemoryQueue::results() const {
  MutexLock lock(&mu_);
  return results_;
}

int64_t MemoryQueue::doubled() const {
  MutexLock lock(&mu_);
  return doubled_;
}

int64_t MemoryQueue::replays() const {
  MutexLock lock(&mu_);
  return replays_;
}

size_t MemoryQueue::largest_take() const {
  MutexLock lock(&mu_);
  return largest_take_;
}

size_t MemoryQueue::taken() const {
  MutexLock lock(&mu_);
  return taken_;
}

}  // namespace sluice
