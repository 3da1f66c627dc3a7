#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/threads/executor.h"
#include "common/threads/mutex.h"
#include "coordinator/jobs/job_manager.h"
#include "proto/call_guard.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// JobService's streams that follow a job: WatchJob and StreamResults. They take
// no thread of their own: a few threads send when the job has changed or when
// the client has taken the last message. Thread-safe.
class FollowService {
 public:
  struct Options {
    size_t max_watches = 4096;
  };
  // `jobs` and `guard`, which may be null, must outlive the service, and the
  // service the server.
  FollowService(JobManager* jobs, const Options& options,
                CallGuard* guard = nullptr);
  ~FollowService();

  grpc::ServerWriteReactor<v1::Job>* Watch(grpc::CallbackServerContext* context,
                                           const std::string& id);
  grpc::ServerWriteReactor<v1::ResultChunk>* Results(
      grpc::CallbackServerContext* context,
      const v1::StreamResultsRequest& request);

  // Called when these jobs have changed, ended or been deleted.
  void Tell(const std::vector<std::string>& jobs);
  // Ends the streams; new ones get kUnavailable.
  void BeginShutdown();

  // These are called by streams.
  enum Kind { kWatch, kResults, kKinds };
  class Stream;
  JobManager* jobs() const { return jobs_; }
  Executor* executor() { return &executor_; }
  bool stopping() const { return stopping_.load(); }
  void Remove(const Stream* stream);

 private:
  template <class Follower>
  Follower* Add(std::shared_ptr<Follower> follower,
                const absl::Status& allowed);

  JobManager* const jobs_;
  const Options options_;
  CallGuard* const guard_;
  std::atomic<bool> stopping_{false};
  Mutex mu_;
  std::multimap<std::string, std::shared_ptr<Stream>> streams_
      ABSL_GUARDED_BY(mu_);  // by job
  size_t open_[kKinds] ABSL_GUARDED_BY(mu_) = {};
  Executor executor_;  // destroyed first: its tasks use the streams
};

}  // namespace sluice
