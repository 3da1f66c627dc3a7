#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "sluice/v1/cluster.pb.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// Sees that a job ends whose workers fail again and again. That a plan is
// followed by a better one is no failure, and may happen often before the first
// answer. Confined to a thread.
class FailureWatch {
 public:
  // To be called with each state of the job, and one of the cluster that is not
  // older. False when plans have failed for the third time since a request was
  // last done with.
  bool Update(const v1::Job& job, const v1::ClusterState& cluster);
  // kFailedPrecondition with the last failure after a false; OK before.
  const absl::Status& status() const { return status_; }

 private:
  int64_t done_ = -1;     // requests, and tokens of answers
  int64_t failures_ = 0;  // when the last of them was done
  std::string detail_;    // of the last failure
  absl::Status status_;
};

}  // namespace sluice
