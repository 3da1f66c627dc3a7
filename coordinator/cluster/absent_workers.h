#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "sluice/v1/cluster.pb.h"

namespace sluice {

// The workers that were refused or lost, or left, lately: a bounded list, whose
// entries expire. Times are of a monotonic clock. Thread-compatible.
class AbsentWorkers {
 public:
  // Records a refusal. Returns false if the same is recorded already.
  bool Refused(const std::string& name, const std::string& reason,
               absl::Duration now) {
    return Put(name, v1::AbsentWorker::KIND_REFUSED, reason, now);
  }
  void Lost(const std::string& name, const std::string& reason,
            absl::Duration now) {
    Put(name, v1::AbsentWorker::KIND_LOST, reason, now);
  }
  // The same of a worker that was stopped on purpose.
  void Left(const std::string& name, const std::string& reason,
            absl::Duration now) {
    Put(name, v1::AbsentWorker::KIND_LEFT, reason, now);
  }
  // Called when the worker is registered.
  void Present(const std::string& name);

  // The last event, for people: "worker 'b' was lost: no heartbeat", "worker
  // 'b' was stopped"; "" if there was none.
  std::string newest() const;
  // Appends the workers to `state`, newest first.
  void Describe(absl::Duration now, v1::ClusterState* state);

 private:
  struct Entry {
    std::string name;
    v1::AbsentWorker::Kind kind;
    std::string reason;
    absl::Duration at;
  };

  bool Put(const std::string& name, v1::AbsentWorker::Kind kind,
           const std::string& reason, absl::Duration now);

  std::deque<Entry> entries_;  // newest first
};

// The workers that plans exclude for a while, since plans failed because of
// them. They are known by name: one that attaches again is the same worker.
// Times are of a monotonic clock. Thread-compatible.
class LeftOut {
 public:
  struct Entry {
    std::string why;  // for people
    absl::Duration since;
    absl::Duration until;
    int times = 0;  // in a row
  };

  // The time for which a worker is left out begins with `first` and doubles, up
  // to `max`, each time that it is added before it was pardoned.
  LeftOut(absl::Duration first, absl::Duration max)
      : first_(first), max_(max) {}

  void Add(const std::string& name, const std::string& why, absl::Duration now);
  // Forgets failures, as the worker did its part or was not to blame.
  void Pardon(const std::string& name) { entries_.erase(name); }
  // Returns null if plans may use the worker.
  const Entry* Find(const std::string& name, absl::Duration now) const;
  bool empty() const { return entries_.empty(); }

 private:
  const absl::Duration first_;
  const absl::Duration max_;
  absl::flat_hash_map<std::string, Entry> entries_;
};

// Counts plans that ended, one after the other, because one of their workers
// was lost. A worker that crashes whenever it loads or computes returns each
// time, maybe with another name; if each plan waited for it, none would ever
// compute. So after the second loss, newcomers have to wait until the plan of
// the others computes, and a while longer. Times are of a monotonic clock.
// Thread-compatible.
class Losses {
 public:
  // Newcomers wait for `first` from when a plan computes; the time doubles, up
  // to `max`, with each loss that follows.
  Losses(absl::Duration first, absl::Duration max) : first_(first), max_(max) {}

  // Called when a plan that could have had this many `workers` was lost.
  void Add(int32_t workers) {
    in_a_row_ = std::min(in_a_row_ + 1, kMaxInARow);
    workers_ = std::max(workers_, workers);
  }
  // Called when a plan begins to compute.
  void Begin(absl::Duration now) {
    until_ = now;
    if (in_a_row_ < 2) return;
    until_ += std::min(max_, first_ * (int64_t{1} << (in_a_row_ - 2)));
  }
  // Called when the running plan, which could have had this many `workers`,
  // made progress. This ends the row of losses if it has as many workers as the
  // lost plans, or runs for long.
  void Progress(int32_t workers, absl::Duration now) {
    if (workers < workers_ && now - until_ <= max_) return;
    in_a_row_ = workers_ = 0;
  }

  int in_a_row() const { return in_a_row_; }
  // Whether newcomers still wait; `computes`: whether a plan computes.
  bool hold(bool computes, absl::Duration now) const {
    return in_a_row_ >= 2 && (!computes || now < until_);
  }

 private:
  static constexpr int kMaxInARow = 30;

  const absl::Duration first_;
  const absl::Duration max_;
  int in_a_row_ = 0;
  int32_t workers_ = 0;   // the maximum of the lost plans
  absl::Duration until_;  // newcomers wait, if a plan computes
};

}  // namespace sluice
