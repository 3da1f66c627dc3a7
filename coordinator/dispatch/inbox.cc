#include "coordinator/dispatch/inbox.h"

#include <utility>

#include "common/threads/deadline.h"

namespace sluice {

Inbox::Inbox(size_t max_worker_events)
    : max_worker_events_(max_worker_events) {}

void Inbox::WakeLocked() {
  woken_ = true;
  ready_.NotifyOne();
}

bool Inbox::Push(WorkerEvent event) {
  MutexLock lock(&mu_);
  while (events_.workers.size() >= max_worker_events_ && !closed_) {
    room_.Wait(&mu_);
  }
  if (closed_) return false;
  events_.workers.push_back(std::move(event));
  WakeLocked();
  return true;
}

void Inbox::NotifyWork() {
  MutexLock lock(&mu_);
  events_.new_work = true;
  WakeLocked();
}

void Inbox::Cancel(JobId job) {
  MutexLock lock(&mu_);
  if (closed_) return;
  events_.cancelled.push_back(job);
  WakeLocked();
}

void Inbox::Reorder() {
  MutexLock lock(&mu_);
  events_.reordered = true;
  WakeLocked();
}

void Inbox::KeepTokens() {
  MutexLock lock(&mu_);
  events_.keep_tokens = true;
  WakeLocked();
}

void Inbox::Drain(const std::string& worker, bool drained) {
  MutexLock lock(&mu_);
  if (closed_) return;
  events_.drains.emplace_back(worker, drained);
  WakeLocked();
}

void Inbox::PutFetched(absl::StatusOr<std::vector<Request>> requests) {
  MutexLock lock(&mu_);
  events_.fetched = std::move(requests);
  WakeLocked();
}

void Inbox::PutPlanned(std::shared_ptr<PlanAnswer> answer) {
  MutexLock lock(&mu_);
  events_.planned.push_back(std::move(answer));
  WakeLocked();
}

void Inbox::Wake() {
  MutexLock lock(&mu_);
  WakeLocked();
}

void Inbox::Close() {
  MutexLock lock(&mu_);
  closed_ = true;
  ready_.NotifyAll();
  room_.NotifyAll();
}

std::optional<DispatchEvents> Inbox::Wait(absl::Duration timeout) {
  const Deadline deadline = Deadline::In(timeout);
  MutexLock lock(&mu_);
  while (!woken_ && !closed_ && !deadline.passed()) {
    ready_.WaitFor(&mu_, deadline.left());
  }
  if (closed_) return std::nullopt;
  woken_ = false;
  room_.NotifyAll();
  return std::exchange(events_, {});
}

}  // namespace sluice
