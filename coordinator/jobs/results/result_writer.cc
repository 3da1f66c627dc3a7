#include "coordinator/jobs/results/result_writer.h"

#include <algorithm>
#include <utility>

#include "common/host/logging.h"

namespace sluice {
namespace {

constexpr int64_t kMaxWaitingBytes = 64 << 20;

}  // namespace

ResultWriter::ResultWriter(const Options& options, ResultSink* sink)
    : options_(options), sink_(sink) {
  thread_ = Thread("result-writer", [this] { Run(); });
}

void ResultWriter::Push(FinishedLine finished) {
  const int64_t bytes = MemoryBytes(finished);
  MutexLock lock(&mu_);
  bytes_ += bytes;
  waiting_.push_back({std::move(finished), bytes});
  ++pushed_;
  work_.NotifyAll();
}

Backlog ResultWriter::backlog() const {
  MutexLock lock(&mu_);
  return {static_cast<int64_t>(pushed_ - done_), bytes_};
}

void ResultWriter::WaitForRoom() {
  MutexLock lock(&mu_);
  while (waits_ && (waiting_.size() >= options_.max_waiting ||
                    bytes_ >= kMaxWaitingBytes)) {
    changed_.Wait(&mu_);
  }
}

void ResultWriter::StopWaiting() {
  MutexLock lock(&mu_);
  waits_ = false;
  changed_.NotifyAll();
}

void ResultWriter::Wake() {
  MutexLock lock(&mu_);
  background_ = true;
  work_.NotifyAll();
}

void ResultWriter::Flush() {
  MutexLock lock(&mu_);
  const uint64_t target = pushed_;
  const uint64_t failures = failures_;
  while (done_ < target && failures_ == failures) changed_.Wait(&mu_);
}

void ResultWriter::Stop() {
  {
    MutexLock lock(&mu_);
    waits_ = false;
    stop_ = true;
    work_.NotifyAll();
    changed_.NotifyAll();
  }
  thread_.Join();
}

std::vector<StoredResult> ResultWriter::TakeBatch(int64_t* bytes) {
  std::deque<Item> items;
  {
    MutexLock lock(&mu_);
    while (!waiting_.empty() && items.size() < options_.max_batch &&
           *bytes < options_.max_batch_bytes) {
      *bytes += waiting_.front().bytes;
      items.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    changed_.NotifyAll();
  }
  std::vector<StoredResult> batch;
  batch.reserve(items.size());
  for (; !items.empty(); items.pop_front()) {
    batch.push_back(sink_->Format(std::move(items.front().finished)));
  }
  return batch;
}

bool ResultWriter::CommitBatch(const std::vector<StoredResult>& batch) {
  absl::Duration wait = options_.first_retry;
  while (true) {
    bool last = false;  // a stop meanwhile leaves one more attempt
    {
      MutexLock lock(&mu_);
      last = stop_;
    }
    if (sink_->Commit(batch).ok()) return true;
    bool background = false;
    {
      MutexLock lock(&mu_);
      ++failures_;
      changed_.NotifyAll();
      if (last) return false;
      const Deadline until = Deadline::In(wait);
      while (!stop_ && !background_ && !until.passed()) {
        work_.WaitFor(&mu_, until.left());
      }
      if (background_at_.passed()) background_ = true;
      background = std::exchange(background_, false) && !stop_;
      if (background) background_at_ = Deadline::Never();
    }
    // Background work may make room if the disk is full.
    if (background) DoBackground();
    wait = std::min(wait * 2, options_.last_retry);
  }
}

void ResultWriter::DoBackground() {
  const auto more = sink_->DoBackgroundWork();
  if (!more.ok()) {
    LogWarning(
        "background work on jobs failed, will be tried "
        "again: ",
        more.status().message());
  }
  MutexLock lock(&mu_);
  if (!more.ok()) {
    background_at_ = Deadline::In(options_.last_retry);
  } else if (*more) {
    background_ = true;
  }
}

void ResultWriter::Run() {
  while (true) {
    bool background = false;
    {
      MutexLock lock(&mu_);
      while (waiting_.empty() && !background_ && !stop_) {
        work_.WaitFor(&mu_, background_at_.left());
        if (background_at_.passed()) background_ = true;
      }
      if (waiting_.empty() && stop_) return;
      if (background_at_.passed())
        background_ = true;  // run it beside results, too
      background = background_ && !stop_;
      if (background) {
        background_ = false;
        background_at_ = Deadline::Never();
      }
    }
    int64_t bytes = 0;
    const std::vector<StoredResult> batch = TakeBatch(&bytes);
    if (!batch.empty()) {
      if (!CommitBatch(batch)) {
        LogError("results_not_saved=", batch.size(),
                 ": their requests run again after a restart");
      }
      {
        MutexLock lock(&mu_);
        done_ += batch.size();
        bytes_ -= bytes;
        changed_.NotifyAll();
      }
      sink_->OnWritten();
    }
    if (background) DoBackground();
  }
}

}  // namespace sluice
