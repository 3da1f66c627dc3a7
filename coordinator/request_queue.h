#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planning/length_histogram.h"
#include "coordinator/request.h"
#include "runtime/model/checkpoint/model_content.h"

namespace sluice {

// What went on in a job since the last report of it.
struct JobProgress {
  int64_t running = 0;        // requests that are being generated now
  int64_t new_tokens = 0;     // tokens generated
  int64_t prompt_tokens = 0;  // of prompts, computed for the first time
  int64_t replays = 0;        // sequences that had to be prefilled again
};

// Results that were completed and are not stored yet.
struct Backlog {
  int64_t results = 0;
  int64_t bytes = 0;  // that they hold in memory
};

// What the dispatcher sees of the durable jobs. Only TakeRequests and
// PendingLengths read the store and may take a while: nothing else waits for a
// disk. Thread-safe.
class RequestQueue {
 public:
  virtual ~RequestQueue() = default;

  // Up to `max` requests that have no result and were not handed out since the
  // process started: by job priority, then age of the job, then input order.
  // Empty when there are none. A request that can't be read any more gets its
  // error result here and is left out. Waits while the backlog is long.
  virtual absl::StatusOr<std::vector<Request>> TakeRequests(size_t max) = 0;

  // Of all requests without a result, handed out or not, for the planner. Of
  // very long jobs a part stands for all.
  virtual absl::StatusOr<LengthHistogram> PendingLengths() = 0;

  // Takes the result, which a thread of the queue's own brings to the store.
  // Exactly one result per request ever becomes visible.
  virtual void Complete(Request request, Generation generation) = 0;
  // Whoever completes requests bounds it: nothing else does.
  virtual Backlog backlog() const = 0;

  // For progress and metrics.
  virtual void ReportProgress(JobId job, const JobProgress& progress) = 0;
  // The plan by which jobs are run from now on, as JSON, or "" for none;
  // recorded with each that has not ended.
  virtual void ReportPlan(const std::string& plan) = 0;
  // The copy of the model by which requests are answered from now on; kept with
  // the unfinished jobs, for an answer by another one would not fit the others.
  // It is stored before any result that is completed later.
  virtual void ReportModel(const ModelContent& model) = 0;
  // Shown as the detail of unfinished jobs: why nothing moves; "" if it does.
  virtual void ReportDetail(const std::string& detail) = 0;
};

}  // namespace sluice
