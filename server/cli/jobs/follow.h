#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/job_client.h"
#include "sluice/v1/cluster.pb.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// Retries calls while the coordinator restarts: jobs survive that, and so
// should the commands that follow them. Confined to a thread.
class Patience {
 public:
  struct Options {
    // Called once each time that the coordinator goes away.
    std::function<void()> on_away;
    // Waits, and returns whether the command was asked to stop.
    std::function<bool(absl::Duration)> sleep;
    absl::Duration first_wait = absl::Milliseconds(200);
    absl::Duration max_wait = absl::Seconds(5);
  };
  explicit Patience(Options options) : options_(std::move(options)) {}

  // Called when the coordinator has answered.
  void Heard();
  bool heard() const { return heard_; }
  // Called after a failed call. Returns false if a retry is of no use, as the
  // coordinator has answered with an error, or has never answered at all. Else
  // waits, longer each time.
  bool TryAgain(const absl::Status& status);

 private:
  const Options options_;
  bool heard_ = false;
  bool away_ = false;
  absl::Duration wait_;
};

// Does JobClient::WatchJob across restarts of the coordinator. Ends with the
// job, or with its error: kNotFound when it is gone.
absl::StatusOr<v1::Job> WatchToEnd(
    JobClient& client, const std::string& id, Patience& patience,
    const std::function<void(const v1::Job&)>& on_job);

// Does JobClient::StreamResults across restarts: each result comes once, in
// order. As the first may take long, it asks for the job if the coordinator has
// not answered yet: kNotFound when there is none.
absl::Status StreamToEnd(
    JobClient& client, const std::string& id, int64_t offset, bool follow,
    Patience& patience,
    const std::function<absl::Status(const v1::Result&)>& on_result);

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
