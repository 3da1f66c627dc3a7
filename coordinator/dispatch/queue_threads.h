#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "coordinator/dispatch/sequence_state.h"
#include "coordinator/request_queue.h"
#include "runtime/text/tokenizer/tokenizer.h"

// The threads between the dispatcher and the durable queue, so that it never
// waits for a disk or for the decoding of text.

namespace sluice {

// Reads requests ahead. Thread-safe.
class RequestFetcher {
 public:
  using Done = std::function<void(absl::StatusOr<std::vector<Request>>)>;

  // `queue` must outlive the fetcher. `done` gets each answer, in the
  // fetcher's thread.
  RequestFetcher(RequestQueue* queue, Done done);
  ~RequestFetcher();

  // Asks for up to `max` requests. REQUIRES: the last answer has come.
  void Fetch(size_t max);

 private:
  void Run();

  RequestQueue* const queue_;
  const Done done_;
  Mutex mu_;
  CondVar changed_;
  size_t wanted_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

struct JobProgress {
  JobId job;
  int64_t running = 0;
  int64_t new_tokens = 0;
  int64_t prompt_tokens = 0;
  int64_t replays = 0;
};

// Decodes results and hands them, and reports, to the queue. Thread-safe.
class CompletionThread {
 public:
  // `queue` and `tokenizer` must outlive the writer. `on_written` is called in
  // the writer's thread when the queue took all there was.
  CompletionThread(RequestQueue* queue, const Tokenizer* tokenizer,
                   std::function<void()> on_written);
  // Writes what is left.
  ~CompletionThread();

  // Never waits. The caller bounds what is under way by unwritten()
  // and unwritten_bytes().
  void Write(std::vector<FinishedRequest> finished);
  void Report(std::vector<JobProgress> progress);
  void ReportDetail(std::string detail);
  void ReportPlan(std::string plan);
  // Before any result that comes later.
  void ReportModel(ModelContent model);

  // Results that the queue has not taken yet.
  int64_t unwritten() const;
  // What they hold in memory.
  int64_t unwritten_bytes() const;

 private:
  void Run();

  RequestQueue* const queue_;
  const Tokenizer* const tokenizer_;
  const std::function<void()> on_written_;
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<FinishedRequest> finished_ ABSL_GUARDED_BY(mu_);
  std::vector<JobProgress> progress_ ABSL_GUARDED_BY(mu_);
  std::optional<std::string> detail_ ABSL_GUARDED_BY(mu_);
  std::optional<std::string> plan_ ABSL_GUARDED_BY(mu_);
  std::optional<ModelContent> model_ ABSL_GUARDED_BY(mu_);
  int64_t unwritten_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t unwritten_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace sluice
