#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <memory>
#include <set>

#include "absl/time/time.h"
#include "common/threads/executor.h"
#include "common/threads/mutex.h"
#include "coordinator/jobs/job_manager.h"
#include "proto/call_guard.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// JobService's uploads: CreateJob. An upload takes no thread of its own; its
// messages are processed one at a time, by a few threads for all uploads, and
// the next one is read when that is done. The memory of unfinished long lines
// is bounded: more of them wait for their turn. Thread-safe.
class UploadService {
 public:
  struct Options {
    size_t max_uploads = 1024;
    // An upload that is idle for this long ends, and frees its request_id.
    absl::Duration idle_timeout = absl::Seconds(60);
    // Longer lines than this are long, and a limited number may come at once.
    // One that takes too long ends its upload if others wait for their turn.
    size_t long_line_bytes = 1 << 20;
    size_t max_long_lines = 4;
    absl::Duration long_line_timeout = absl::Minutes(10);
  };
  // `jobs` and `guard`, which may be null, must outlive the service, and the
  // service the server.
  UploadService(JobManager* jobs, const Options& options,
                CallGuard* guard = nullptr);
  ~UploadService();

  // `response` lives as long as the call.
  grpc::ServerReadReactor<v1::CreateJobRequest>* Create(
      grpc::CallbackServerContext* context, v1::Job* response);

  // Ends uploads from which nothing came for too long; called at intervals.
  void EndIdle();
  // Ends all uploads; new ones get kUnavailable.
  void BeginShutdown();

 private:
  class Stream;

  // Whether a long line may come; else the stream is told when it may.
  bool EnterLongLine(const std::shared_ptr<Stream>& stream);
  void LeaveLongLine();
  void Forget(const Stream* stream);  // it waits for no long line any more
  void Remove(const std::shared_ptr<Stream>& stream);

  JobManager* const jobs_;
  CallGuard* const guard_;
  const Options options_;
  std::atomic<bool> stopping_{false};
  Mutex mu_;
  std::set<std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mu_);
  size_t long_lines_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<std::shared_ptr<Stream>> waiting_ ABSL_GUARDED_BY(mu_);
  // Destroyed first, as their tasks use the streams.
  Executor executor_;
  Executor files_;  // for jobs from input paths, which take long
};

}  // namespace sluice
