#include "coordinator/jobs/results/result_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/host/logging.h"

namespace sluice {
namespace {

int64_t SizeOf(const ResultHead& head, const Generation& generation) {
  return static_cast<int64_t>(sizeof(head) + head.custom_id.size() +
                              head.prompt_text.size() +
                              head.prompt.size() * sizeof(int32_t)) +
         MemoryBytes(generation);
}

}  // namespace

ResultWriter::ResultWriter(Options options) : options_(std::move(options)) {
  thread_ = Thread("result-writer", [this] { Run(); });
}

ResultWriter::~ResultWriter() { Stop(); }

void ResultWriter::Push(ResultHead head, Generation generation) {
  Item item{std::move(head), std::move(generation), 0};
  item.bytes = SizeOf(item.head, item.generation);
  MutexLock lock(&mu_);
  while (waits_ && (waiting_.size() >= options_.max_waiting ||
                    waiting_bytes_ >= options_.max_waiting_bytes)) {
    changed_.Wait(&mu_);
  }
  waiting_bytes_ += item.bytes;
  waiting_.push_back(std::move(item));
  ++pushed_;
  work_.NotifyAll();
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

std::vector<StoredResult> ResultWriter::TakeBatch() {
  std::deque<Item> items;
  {
    MutexLock lock(&mu_);
    int64_t bytes = 0;
    while (!waiting_.empty() && items.size() < options_.max_batch &&
           bytes < options_.max_batch_bytes) {
      bytes += waiting_.front().bytes;
      waiting_bytes_ -= waiting_.front().bytes;
      items.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    changed_.NotifyAll();
  }
  std::vector<StoredResult> batch;
  batch.reserve(items.size());
  while (!items.empty()) {
    const Item item = std::move(items.front());
    items.pop_front();
    batch.push_back(options_.format(item.head, item.generation));
  }
  return batch;
}

bool ResultWriter::CommitBatch(const std::vector<StoredResult>& batch) {
  absl::Duration wait = options_.first_retry;
  bool failed = false;
  while (true) {
    bool last = false;  // a stop that comes meanwhile leaves one more attempt
    {
      MutexLock lock(&mu_);
      last = stop_;
    }
    const absl::Status status = options_.commit(batch);
    if (status.ok()) {
      if (failed) options_.on_store_state(status);
      return true;
    }
    failed = true;
    options_.on_store_state(status);
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
    // Which may be what makes room, if that is what lacks.
    if (background) DoBackground();
    wait = std::min(wait * 2, options_.last_retry);
  }
}

void ResultWriter::DoBackground() {
  const auto more = options_.background();
  if (!more.ok()) {
    LogWarning(
        absl::StrCat("background work on jobs failed, will be tried "
                     "again: ",
                     more.status().message()));
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
      if (background_at_.passed()) background_ = true;  // beside results, too
      background = background_ && !stop_;
      if (background) {
        background_ = false;
        background_at_ = Deadline::Never();
      }
    }
    const std::vector<StoredResult> batch = TakeBatch();
    if (!batch.empty()) {
      if (!CommitBatch(batch)) {
        LogError(absl::StrCat("results_not_saved=", batch.size(),
                              ": their requests run again after a restart"));
      }
      MutexLock lock(&mu_);
      done_ += batch.size();
      changed_.NotifyAll();
    }
    if (background) DoBackground();
  }
}

}  // namespace sluice
