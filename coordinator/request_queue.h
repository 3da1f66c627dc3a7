#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planning/length_histogram.h"
#include "coordinator/request.h"
#include "runtime/model/checkpoint/model_content.h"

namespace sluice {

// What the dispatcher sees of the durable jobs. Thread-safe.
class RequestQueue {
 public:
  virtual ~RequestQueue() = default;

  // Up to `max` requests that have no result and were not handed out since the
  // process started: by job priority, then age of the job, then input order.
  // Empty when there are none. A request that can't be read any more gets its
  // error result here and is left out.
  virtual absl::StatusOr<std::vector<Request>> TakeRequests(size_t max) = 0;

  // Of all requests without a result, handed out or not, for the planner. Of
  // very long jobs a part stands for all. Reads the store: takes a while.
  virtual absl::StatusOr<LengthHistogram> PendingLengths() = 0;

  // Records the result. Returns at once, in general: a writer thread commits
  // results in groups; waits when it is far behind. Exactly one result per
  // request ever becomes visible.
  virtual void Complete(const Request& request, Generation generation) = 0;

  // For progress and metrics: requests of the job being generated now, and
  // since the last report tokens generated and tokens of prompts computed,
  // those computed again after a failure left out.
  virtual void ReportProgress(JobId job, int64_t running, int64_t new_tokens,
                              int64_t prompt_tokens) = 0;
  // Sequences of this job that had to be prefilled again.
  virtual void ReportReplays(JobId job, int64_t count) = 0;
  // The plan by which jobs are run from now on, as JSON, or "" for none;
  // recorded with each that has not ended.
  virtual void ReportPlan(const std::string& plan) = 0;
  // The copy of the model by which requests are answered from now on; kept with
  // the unfinished jobs, for an answer by another one would not fit the others.
  virtual void ReportModel(const ModelContent& /*model*/) {}
  // What was reported last, in this life or an earlier one.
  virtual ModelContent ReportedModel() { return {}; }
  // Whether an unfinished job was begun: requests of it were handed out, or
  // have answers.
  virtual bool HasBegunJobs() { return false; }
  // Shown as the detail of unfinished jobs: why nothing moves; "" if it does.
  virtual void ReportDetail(const std::string& detail) = 0;
};

}  // namespace sluice
