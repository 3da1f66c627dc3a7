#pragma once

#include <deque>
#include <string>

#include "absl/time/time.h"
#include "sluice/v1/cluster.pb.h"

namespace sluice {

// The workers that were refused or lost lately: a bounded list, whose entries
// expire. Times are of a monotonic clock. Thread-compatible.
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
  // Called when the worker is registered.
  void Present(const std::string& name);

  // The last event, for people: "worker 'b' was lost: no heartbeat"; "" if
  // there was none.
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
