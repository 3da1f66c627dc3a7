#include "worker/probe/link_survey.h"

#include <utility>

#include "common/status_macros.h"
#include "worker/link/link_protocol.h"
#include "worker/probe/worker_profile.h"

namespace sluice {

LinkSurvey::~LinkSurvey() {
  Cancel();
  Thread thread;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    thread = std::move(thread_);
    changed_.NotifyAll();
  }
  thread.Join();
}

void LinkSurvey::Start(std::vector<Peer> peers, Done done) {
  Add({std::move(peers), std::move(done), nullptr});
}

void LinkSurvey::Reach(std::vector<Peer> peers, Reached done) {
  Add({std::move(peers), nullptr, std::move(done)});
}

void LinkSurvey::Add(Task task) {
  MutexLock lock(&mu_);
  if (stopped_) return;
  tasks_.push_back(std::move(task));
  if (!thread_.joinable()) thread_ = Thread("link survey", [this] { Run(); });
  changed_.NotifyAll();
}

void LinkSurvey::Cancel() {
  std::shared_ptr<LinkSender> sender;
  {
    MutexLock lock(&mu_);
    tasks_.clear();
    if (cancelled_ != nullptr) *cancelled_ = true;
    sender = sender_;
  }
  // Without Close, a send to a stopped peer would wait forever.
  if (sender != nullptr) sender->Close();
}

void LinkSurvey::Run() {
  for (;;) {
    Task task;
    const auto cancelled = std::make_shared<std::atomic<bool>>(false);
    {
      MutexLock lock(&mu_);
      while (tasks_.empty() && !stopped_) changed_.Wait(&mu_);
      if (stopped_) return;
      task = std::move(tasks_.front());
      tasks_.erase(tasks_.begin());
      cancelled_ = cancelled;
    }
    std::vector<Measured> measured;
    std::vector<absl::Status> reached;
    for (const Peer& peer : task.peers) {
      if (task.done) {
        measured.push_back({peer.name, Measure(peer, *cancelled)});
      } else {
        reached.push_back(
            links_->Connect(peer.address, kProbeEpoch, {}).status());
      }
    }
    {
      MutexLock lock(&mu_);
      cancelled_.reset();
    }
    if (*cancelled) continue;
    if (task.done) {
      task.done(std::move(measured));
    } else {
      task.reached(std::move(reached));
    }
  }
}

absl::StatusOr<LinkProfile> LinkSurvey::Measure(
    const Peer& peer, const std::atomic<bool>& cancelled) {
  if (cancelled) return absl::CancelledError("broken off");
  absl::StatusOr<std::shared_ptr<LinkSender>> connected =
      links_->Connect(peer.address, kProbeEpoch, {.tcp = peer.tcp});
  if (absl::IsUnimplemented(connected.status()) && peer.tcp) {
    connected = links_->Connect(peer.address, kProbeEpoch, {});
  }
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<LinkSender> sender, connected);
  {
    MutexLock lock(&mu_);
    // A Cancel from now on closes it.
    if (cancelled) return absl::CancelledError("broken off");
    sender_ = sender;
  }
  absl::StatusOr<LinkProfile> link =
      MeasureLink(*sender, seconds_each_, &cancelled);
  {
    MutexLock lock(&mu_);
    sender_.reset();
  }
  if (link.ok()) link->peer = peer.name;
  return link;
}

}  // namespace sluice
