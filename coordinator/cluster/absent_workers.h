#pragma once

#include <deque>
#include <string>

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

}  // namespace sluice
