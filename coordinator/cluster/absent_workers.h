#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "sluice/v1/cluster.pb.h"

namespace sluice {

// Workers that were refused or lost, as far as that is news: bounded, and
// forgotten after a while. Times are a clock's. Thread-compatible.
class AbsentWorkers {
 public:
  // False if the same is known already.
  bool Refused(const std::string& name, const std::string& reason,
               absl::Duration now) {
    return Put(name, v1::AbsentWorker::KIND_REFUSED, reason, now);
  }
  void Lost(const std::string& name, const std::string& reason,
            absl::Duration now) {
    Put(name, v1::AbsentWorker::KIND_LOST, reason, now);
  }
  // It is registered.
  void Present(const std::string& name);

  // What happened last, for people: "worker 'b' was lost: no heartbeat"; "" if
  // nothing did.
  std::string newest() const;
  // Appends them to `state`, newest first.
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

// Workers that plans do without for a while, since plans failed because of
// them. They go by name: one that attaches again is the same worker. Times are
// a clock's. Thread-compatible.
class LeftOut {
 public:
  struct Entry {
    std::string why;  // for people
    absl::Duration since;
    absl::Duration until;
    int times = 0;  // in a row
  };

  // The time for which a worker is left out begins with `first` and doubles, up
  // to `most`, each time that it is added before it was pardoned.
  LeftOut(absl::Duration first, absl::Duration most)
      : first_(first), most_(most) {}

  void Add(const std::string& name, const std::string& why, absl::Duration now);
  // It did its part, or was not to blame.
  void Pardon(const std::string& name) { entries_.erase(name); }
  // Null if plans may have it.
  const Entry* Find(const std::string& name, absl::Duration now) const;
  bool empty() const { return entries_.empty(); }

 private:
  const absl::Duration first_;
  const absl::Duration most_;
  absl::flat_hash_map<std::string, Entry> entries_;
};

// Counts plans that ended, one after the other, because one of their workers
// was lost. A worker that crashes whenever it loads or computes comes back each
// time, maybe with another name; if each plan waited for it, none would ever
// compute. So after the second loss those that came since have to wait, until
// the plan of the others computes and for a while. Times are a clock's.
// Thread-compatible.
class Losses {
 public:
  // How long they wait from when a plan computes begins with `first`, and
  // doubles, up to `most`, with each loss that follows.
  Losses(absl::Duration first, absl::Duration most)
      : first_(first), most_(most) {}

  // A plan ended so that could have had as many `workers`.
  void Add(int32_t workers) {
    in_a_row_ = std::min(in_a_row_ + 1, kMostInARow);
    workers_ = std::max(workers_, workers);
  }
  // A plan begins to compute.
  void Begin(absl::Duration now) {
    until_ = now;
    if (in_a_row_ < 2) return;
    until_ += std::min(most_, first_ * (int64_t{1} << (in_a_row_ - 2)));
  }
  // The plan that computes, which could have had as many `workers`, got
  // something done. That ends the row if it has as many as those that were
  // lost, or goes on for long.
  void Progress(int32_t workers, absl::Duration now) {
    if (workers < workers_ && now - until_ <= most_) return;
    in_a_row_ = workers_ = 0;
  }

  int in_a_row() const { return in_a_row_; }
  // Whether those that have come since wait yet; `computes`: a plan does.
  bool hold(bool computes, absl::Duration now) const {
    return in_a_row_ >= 2 && (!computes || now < until_);
  }

 private:
  static constexpr int kMostInARow = 30;

  const absl::Duration first_;
  const absl::Duration most_;
  int in_a_row_ = 0;
  int32_t workers_ = 0;   // the most of the plans that were lost
  absl::Duration until_;  // they wait, if a plan computes
};

}  // namespace sluice
