#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "sluice/v1/cluster.pb.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// Notices a job whose workers fail again and again, so that it can be ended. A
// plan that is replaced by a better one is no failure, and may happen often
// before the first answer. Confined to a thread.
class FailureWatch {
 public:
  // Call it with each state of the job, and a state of the cluster that is not
  // older. Returns false when plans have failed for the third time since a
  // request last finished.
  bool Update(const v1::Job& job, const v1::ClusterState& cluster);
  // kFailedPrecondition with the last failure after Update's false; else OK.
  const absl::Status& status() const { return status_; }

 private:
  int64_t done_ = -1;     // finished requests, and tokens of answers
  int64_t failures_ = 0;  // when the last of them finished
  std::string detail_;    // of the last failure
  absl::Status status_;
};

}  // namespace sluice
