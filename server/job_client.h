#pragma once

#include <cstdint>
#include <functional>
#include <istream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/grpc_endpoint.h"
#include "sluice/v1/cluster.pb.h"
#include "sluice/v1/jobs.pb.h"

namespace grpc {
class Channel;
}

namespace sluice {

class StopSignals;

// The client of JobService and ClusterService for the command line.
// Thread-safe.
class JobClient {
 public:
  virtual ~JobClient() = default;

  // Calls give kUnavailable, naming the address, if nothing answers there.
  // `signals`, if given, must outlive the client, which a signal stops.
  static std::unique_ptr<JobClient> Connect(
      const std::string& address, const ChannelSecurity& security = {},
      StopSignals* signals = nullptr);
  static std::unique_ptr<JobClient> FromChannel(
      std::shared_ptr<grpc::Channel> channel, const std::string& name);

  using UploadProgress = std::function<void(int64_t bytes_sent)>;
  // Streams `input` to its end, or, if it is null, lets the coordinator read
  // spec.input_path.
  virtual absl::StatusOr<v1::Job> CreateJob(const v1::JobSpec& spec,
                                            std::istream* input,
                                            const UploadProgress& progress) = 0;
  virtual absl::StatusOr<v1::Job> GetJob(const std::string& id) = 0;
  virtual absl::StatusOr<v1::ListJobsResponse> ListJobs(
      const v1::ListJobsRequest& request) = 0;
  virtual absl::StatusOr<v1::Job> CancelJob(const std::string& id) = 0;
  virtual absl::StatusOr<v1::Job> PauseJob(const std::string& id) = 0;
  virtual absl::StatusOr<v1::Job> ResumeJob(const std::string& id) = 0;
  virtual absl::StatusOr<v1::Job> SetJobPriority(const std::string& id,
                                                 int32_t priority) = 0;
  virtual absl::Status DeleteJob(const std::string& id) = 0;
  // Calls `on_job` for each state until the job has ended or `on_job` returns
  // false. Returns the last state.
  virtual absl::StatusOr<v1::Job> WatchJob(
      const std::string& id,
      const std::function<bool(const v1::Job&)>& on_job) = 0;
  // Calls `on_result` for each result from `offset` on, in order; an error of
  // it ends the stream and is returned.
  virtual absl::Status StreamResults(
      const std::string& id, int64_t offset, bool follow,
      const std::function<absl::Status(const v1::Result&)>& on_result) = 0;
  // Returns the state with all workers, however many there are.
  virtual absl::StatusOr<v1::ClusterState> GetClusterState() = 0;
  // Has plans do without the worker, or use it again.
  virtual absl::Status DrainWorker(const std::string& name, bool undo) = 0;

  // Returns what the cluster did while the job existed, with all its spans:
  // those of a process may be in several places.
  virtual absl::StatusOr<v1::Trace> GetTrace(const std::string& id) = 0;

  // Ends all calls, those that run and those that are made later, with
  // kCancelled. Does not wait for them. From then on, no call begins.
  virtual void Stop() = 0;
};

}  // namespace sluice
