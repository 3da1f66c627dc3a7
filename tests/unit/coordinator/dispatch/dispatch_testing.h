#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/threads/clock.h"
#include "common/threads/mutex.h"
#include "coordinator/request_queue.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/manual_clock.h"

// The common parts of the dispatcher's tests: a queue in memory and a model
// that is a hash.

namespace sluice {

// The token after `tokens`, -1 for logits that are no numbers.
using Model =
    std::function<int32_t(uint64_t seed, const std::vector<int32_t>& tokens)>;

// A printable character or, one time in `eos_every`, the end; depends on the
// seed and all tokens.
Model HashModel(uint64_t eos_every);
// A model that generates `text` and ends; a '\xff' in it is a token of -1.
Model ScriptModel(size_t prompt_tokens, std::string text);

// The log-probability of the last of `tokens`, and of alternative `rank` to it.
float FakeLogprob(std::span<const int32_t> tokens);
TokenLogprob FakeAlternative(std::span<const int32_t> tokens, int32_t rank);

// The tokens that a request must generate, found without the dispatcher's code.
struct Expected {
  std::string text;
  std::vector<int32_t> tokens;
  int32_t generated = 0;
  FinishReason finish_reason = FinishReason::kStop;
};
Expected Simulate(const Request& request, const Model& model);

Request MakeRequest(int64_t job, int64_t index, absl::string_view prompt,
                    int32_t max_tokens);

class MemoryQueue : public RequestQueue {
 public:
  void Add(std::vector<Request> requests);
  // Takes these instead of all that wait.
  void Replace(std::vector<Request> requests);
  // Makes TakeRequests fail with this status from now on.
  void FailReads(absl::Status status);

  absl::StatusOr<std::vector<Request>> TakeRequests(size_t max) override;
  void GiveBack(std::vector<Request> requests) override;
  absl::StatusOr<LengthHistogram> PendingLengths() override;
  void Complete(Request request, Generation generation) override;
  Backlog backlog() const override { return {}; }
  void KeepTokens(std::vector<NewTokens> tokens) override;
  bool keeping_tokens() const override { return false; }
  void ReportProgress(JobId job, const JobProgress& progress) override;
  void ReportPlan(const std::string& plan) override;
  void ReportModel(const ModelContent&) override {}
  void ReportDetail(const std::string& detail) override;

  // Each of these waits for its condition.
  void WaitForResults(size_t count);
  void WaitForDetail(const std::string& part);
  bool HasDetail(const std::string& part) const;
  void WaitForReady();  // the detail is ""
  void WaitForTaken(size_t count);
  void WaitForReturned(size_t count);
  void WaitForTokens(int64_t count);
  void WaitForKept(int64_t count);  // tokens

  // The tokens kept of each request, by job and index.
  std::map<std::pair<int64_t, int64_t>, AnswerTokens> kept() const;

  std::map<std::pair<int64_t, int64_t>, Generation> results() const;
  int64_t doubled() const;
  int64_t replays() const;
  std::vector<std::string> plans() const;  // all that were reported
  size_t largest_take() const;
  size_t taken() const;

 private:
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<Request> waiting_ ABSL_GUARDED_BY(mu_);  // next last
  std::vector<std::string> plans_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<int64_t, int64_t>, Generation> results_
      ABSL_GUARDED_BY(mu_);
  std::map<std::pair<int64_t, int64_t>, AnswerTokens> kept_
      ABSL_GUARDED_BY(mu_);
  int64_t kept_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t doubled_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t replays_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t tokens_ ABSL_GUARDED_BY(mu_) = 0;
  size_t taken_ ABSL_GUARDED_BY(mu_) = 0;
  size_t returned_ ABSL_GUARDED_BY(mu_) = 0;
  size_t largest_take_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<std::string> detail_ ABSL_GUARDED_BY(mu_);
  absl::Status read_status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
