#include "coordinator/dispatch/queue_threads.h"

#include <algorithm>
#include <utility>

#include "runtime/text/detokenizer.h"

namespace sluice {

RequestFetcher::RequestFetcher(RequestQueue* queue, Done done)
    : queue_(queue),
      done_(std::move(done)),
      thread_("request-fetch", [this] { Run(); }) {}

RequestFetcher::~RequestFetcher() {
  {
    MutexLock lock(&mu_);
    closed_ = true;
    changed_.NotifyOne();
  }
  thread_.Join();
}

void RequestFetcher::Fetch(size_t max) {
  MutexLock lock(&mu_);
  wanted_ = max;
  changed_.NotifyOne();
}

void RequestFetcher::Run() {
  for (;;) {
    size_t wanted;
    {
      MutexLock lock(&mu_);
      while (wanted_ == 0 && !closed_) changed_.Wait(&mu_);
      if (closed_) return;
      wanted = std::exchange(wanted_, 0);
    }
    done_(queue_->TakeRequests(wanted));
  }
}

CompletionThread::CompletionThread(RequestQueue* queue,
                                   const Tokenizer* tokenizer,
                                   std::function<void()> on_written)
    : queue_(queue),
      tokenizer_(tokenizer),
      on_written_(std::move(on_written)),
      thread_("result-writer", [this] { Run(); }) {}

CompletionThread::~CompletionThread() {
  {
    MutexLock lock(&mu_);
    closed_ = true;
    changed_.NotifyOne();
  }
  thread_.Join();
}

void CompletionThread::Write(std::vector<FinishedRequest> finished) {
  MutexLock lock(&mu_);
  unwritten_ += static_cast<int64_t>(finished.size());
  for (const FinishedRequest& f : finished) {
    unwritten_bytes_ += MemoryBytes(f.generation);
  }
  if (finished_.empty()) {
    finished_ = std::move(finished);
  } else {
    finished_.insert(finished_.end(), std::move_iterator(finished.begin()),
                     std::move_iterator(finished.end()));
  }
  changed_.NotifyOne();
}

void CompletionThread::Report(std::vector<JobProgress> progress) {
  MutexLock lock(&mu_);
  for (JobProgress& report : progress) {
    const auto known =
        std::find_if(progress_.begin(), progress_.end(),
                     [&](const JobProgress& p) { return p.job == report.job; });
    if (known == progress_.end()) {
      progress_.push_back(report);
      continue;
    }
    known->running = report.running;
    known->new_tokens += report.new_tokens;
    known->prompt_tokens += report.prompt_tokens;
    known->replays += report.replays;
  }
  changed_.NotifyOne();
}

void CompletionThread::ReportDetail(std::string detail) {
  MutexLock lock(&mu_);
  detail_ = std::move(detail);
  changed_.NotifyOne();
}

void CompletionThread::ReportPlan(std::string plan) {
  MutexLock lock(&mu_);
  plan_ = std::move(plan);
  changed_.NotifyOne();
}

void CompletionThread::ReportModel(ModelContent model) {
  MutexLock lock(&mu_);
  model_ = std::move(model);
  changed_.NotifyOne();
}

int64_t CompletionThread::unwritten_bytes() const {
  MutexLock lock(&mu_);
  return unwritten_bytes_;
}

int64_t CompletionThread::unwritten() const {
  MutexLock lock(&mu_);
  return unwritten_;
}

void CompletionThread::Run() {
  for (;;) {
    std::vector<FinishedRequest> finished;
    std::vector<JobProgress> progress;
    std::optional<std::string> detail;
    std::optional<std::string> plan;
    std::optional<ModelContent> model;
    {
      MutexLock lock(&mu_);
      const auto nothing = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return finished_.empty() && progress_.empty() && !detail_ && !plan_ &&
               !model_;
      };
      while (nothing() && !closed_) changed_.Wait(&mu_);
      if (nothing()) return;
      finished.swap(finished_);
      progress.swap(progress_);
      detail.swap(detail_);
      plan.swap(plan_);
      model.swap(model_);
    }
    if (model) queue_->ReportModel(*model);
    if (plan) queue_->ReportPlan(*plan);
    if (detail) queue_->ReportDetail(*detail);
    for (const JobProgress& p : progress) {
      queue_->ReportProgress(p.job, p.running, p.new_tokens, p.prompt_tokens);
      if (p.replays > 0) queue_->ReportReplays(p.job, p.replays);
    }
    int64_t bytes = 0;
    for (FinishedRequest& f : finished) {
      bytes += MemoryBytes(f.generation);
      if (f.decode) {
        f.generation.text =
            DecodeAfter(*tokenizer_, f.request.prompt, f.generation.tokens,
                        /*skip_special_tokens=*/true);
      }
      queue_->Complete(f.request, std::move(f.generation));
    }
    if (finished.empty()) continue;
    {
      MutexLock lock(&mu_);
      unwritten_ -= static_cast<int64_t>(finished.size());
      unwritten_bytes_ -= bytes;
    }
    on_written_();
  }
}

}  // namespace sluice
