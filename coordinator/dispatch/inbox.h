#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/threads/mutex.h"
#include "common/types.h"
#include "coordinator/cluster/worker_stream.h"
#include "coordinator/request.h"

namespace sluice {

struct PlanAnswer;

// The events since the dispatcher's last Wait.
struct DispatchEvents {
  std::vector<WorkerEvent> workers;  // in order of arrival
  std::vector<JobId> cancelled;
  // The answer to the one fetch under way.
  std::optional<absl::StatusOr<std::vector<Request>>> fetched;
  bool keep_tokens = false;  // what is known is to be stored now
  bool reordered = false;    // what is not begun is to be given back
  bool new_work = false;     // there may be requests to fetch
  // Workers by name; whether plans are to do without them.
  std::vector<std::pair<std::string, bool>> drains;
  std::vector<std::shared_ptr<PlanAnswer>> planned;  // answers to searches
};

// The dispatcher's mailbox. Worker events are bounded: their readers wait for
// room. All else is small and never waits, so that callers may hold locks.
// Thread-safe.
class Inbox : public WorkerEventSink {
 public:
  explicit Inbox(size_t max_worker_events);

  bool Push(WorkerEvent event) override;
  void NotifyWork();
  void Cancel(JobId job);
  void Reorder();
  void KeepTokens();
  void Drain(const std::string& worker, bool drained);
  void PutFetched(absl::StatusOr<std::vector<Request>> requests);
  void PutPlanned(std::shared_ptr<PlanAnswer> answer);
  // Wakes the dispatcher without telling it anything.
  void Wake();
  // Closes the inbox: Push fails, Wait returns nothing.
  void Close();

  // Waits for events, at most `timeout` (the result may then be empty). Returns
  // nullopt once closed.
  std::optional<DispatchEvents> Wait(absl::Duration timeout);

 private:
  void WakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t max_worker_events_;
  Mutex mu_;
  CondVar ready_;
  CondVar room_;
  DispatchEvents events_ ABSL_GUARDED_BY(mu_);
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice
