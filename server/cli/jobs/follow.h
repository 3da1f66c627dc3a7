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

// Outlives a coordinator that goes away and comes back: jobs do, and so should
// who follows them. Confined to a thread.
class Patience {
 public:
  struct Options {
    // Told once each time that the coordinator goes away.
    std::function<void()> on_away;
    std::function<void(absl::Duration)> sleep = absl::SleepFor;
    absl::Duration first_wait = absl::Milliseconds(200);
    absl::Duration most_wait = absl::Seconds(5);
  };
  explicit Patience(Options options) : options_(std::move(options)) {}

  // Something came from the coordinator.
  void Heard();
  bool heard() const { return heard_; }
  // After a call that failed: false if trying again is no use, because it has
  // an answer, or because nobody has ever been heard there. Else waits, longer
  // each time.
  bool TryAgain(const absl::Status& status);

 private:
  const Options options_;
  bool heard_ = false;
  bool away_ = false;
  absl::Duration wait_;
};

// JobClient::WatchJob, however often the coordinator restarts. Ends with the
// job, or with its error: kNotFound when it is gone.
absl::StatusOr<v1::Job> WatchToEnd(
    JobClient& client, const std::string& id, Patience& patience,
    const std::function<void(const v1::Job&)>& on_job);

// JobClient::StreamResults, the same: each result comes once, in order. As it
// may be long before the first comes, it asks for the job when nobody has been
// heard yet: kNotFound when there is none.
absl::Status StreamToEnd(
    JobClient& client, const std::string& id, int64_t offset, bool follow,
    Patience& patience,
    const std::function<absl::Status(const v1::Result&)>& on_result);

// From here on, Ctrl-C (SIGINT) and SIGTERM end the process with code 130 or
// 143, with `note` as the last line on stderr: what was interrupted is only who
// looked on.
void NoteOnInterrupt(const std::string& note);

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
