#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/access.h"
#include "coordinator/jobs/job_history.h"
#include "coordinator/jobs/job_manager.h"
#include "coordinator/jobs/live_jobs.h"
#include "sluice/v1/cluster.pb.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// What the console's page reads. Messages are in Protobuf's own JSON, with the
// fields' names as in the .proto files and all fields there: numbers of 64 bits
// are texts. Times are microseconds since the Unix epoch.

// {"name", "tenant", "read", "submit", "admin", "version", "problem"};
// `problem` says why the caller may not read, or is "".
std::string SessionJson(const Caller& caller, const std::string& problem);

// {"job": Job, "tokens_per_second": 1.5, "seconds_left": 12.5 or null}
std::string JobJson(const v1::Job& job, const LiveJobs::Pace& pace);

// {"jobs": [as above], "next_page_token": ""}
std::string JobsJson(const std::vector<std::string>& jobs,
                     const std::string& next_page_token);

// A ClusterState, without the workers' profiles.
std::string ClusterJson(v1::ClusterState state);

// {"samples": [[time, prompt tokens, generated tokens, running, waiting], ...],
//  "events": [{"time_us", "kind", "text"}, ...]}
std::string QueueJson(const QueueHistory& history, int64_t after_us);

// {"samples": [[time, prompt tokens, generated tokens, requests that ended,
//  running], ...], "events": [as above]}
std::string TimelineJson(const JobHistory& history);

// {"errors": [{"index", "custom_id", "code", "message"}, ...],
//  "next_from": 17 or null}: at most `limit` of those given.
std::string ErrorsJson(const std::vector<JobManager::FailedRequest>& errors,
                       size_t limit);

}  // namespace sluice
