#include "worker/probe/link_survey.h"

#include <utility>

#include "common/status_macros.h"
#include "worker/link/link_protocol.h"
#include "worker/probe/worker_profile.h"

namespace sluice {
namespace {

// As many as a worker has peers to test, so that none waits for another.
constexpr int kReachThreads = 16;

}  // namespace

LinkSurvey::~LinkSurvey() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
  }
  Cancel();
  Thread thread;
  std::unique_ptr<Executor> reach;
  {
    MutexLock lock(&mu_);
    thread = std::move(thread_);
    reach = std::move(reach_);
    changed_.NotifyAll();
  }
  reach.reset();
  thread.Join();
}

struct LinkSurvey::Batch {
  std::vector<Peer> peers;
  Reached done;
  std::shared_ptr<std::atomic<bool>> cancelled;
  Mutex mu;
  std::vector<absl::Status> results ABSL_GUARDED_BY(mu);
  size_t left ABSL_GUARDED_BY(mu) = 0;
};

void LinkSurvey::Reach(std::vector<Peer> peers, Reached done) {
  const auto batch = std::make_shared<Batch>();
  const size_t count = peers.size();
  batch->peers = std::move(peers);
  batch->done = std::move(done);
  {
    MutexLock lock(&batch->mu);
    batch->results.resize(count);
    batch->left = count;
  }
  MutexLock lock(&mu_);
  if (stopped_) return;
  batch->cancelled = reach_cancelled_;
  if (reach_ == nullptr) {
    reach_ = std::make_unique<Executor>("link tests", kReachThreads);
  }
  for (size_t i = 0; i < count; ++i) {
    reach_->Run([this, batch, i] {
      if (*batch->cancelled) return;
      absl::Status status = links_
                                ->Connect(batch->peers[i].address, kProbeEpoch,
                                          {.cancelled = batch->cancelled.get()})
                                .status();
      std::vector<absl::Status> results;
      {
        MutexLock lock(&batch->mu);
        batch->results[i] = std::move(status);
        if (--batch->left > 0) return;
        results = std::move(batch->results);
      }
      if (!*batch->cancelled) batch->done(std::move(results));
    });
  }
}

void LinkSurvey::Start(std::vector<Peer> peers, Done done) {
  MutexLock lock(&mu_);
  if (stopped_) return;
  tasks_.push_back({std::move(peers), std::move(done)});
  if (!thread_.joinable()) thread_ = Thread("link survey", [this] { Run(); });
  changed_.NotifyAll();
}

void LinkSurvey::Cancel() {
  std::shared_ptr<LinkSender> sender;
  {
    MutexLock lock(&mu_);
    tasks_.clear();
    if (cancelled_ != nullptr) *cancelled_ = true;
    *reach_cancelled_ = true;
    reach_cancelled_ = std::make_shared<std::atomic<bool>>(false);
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
    for (const Peer& peer : task.peers) {
      measured.push_back({peer.name, Measure(peer, *cancelled)});
    }
    {
      MutexLock lock(&mu_);
      cancelled_.reset();
    }
    if (!*cancelled) task.done(std::move(measured));
  }
}

absl::StatusOr<LinkProfile> LinkSurvey::Measure(
    const Peer& peer, const std::atomic<bool>& cancelled) {
  if (cancelled) return absl::CancelledError("broken off");
  absl::StatusOr<std::shared_ptr<LinkSender>> connected = links_->Connect(
      peer.address, kProbeEpoch, {.tcp = peer.tcp, .cancelled = &cancelled});
  if (absl::IsUnimplemented(connected.status()) && peer.tcp) {
    connected =
        links_->Connect(peer.address, kProbeEpoch, {.cancelled = &cancelled});
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
