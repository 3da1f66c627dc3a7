#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planning/length_histogram.h"
#include "coordinator/request.h"
#include "runtime/model/checkpoint/model_content.h"

namespace sluice {

// A job's progress since its last report.
struct JobProgress {
  int64_t running = 0;        // requests that are being generated now
  int64_t new_tokens = 0;     // tokens generated
  int64_t prompt_tokens = 0;  // of prompts, in the KV cache for the first time
  int64_t replays = 0;        // sequences that had to be prefilled again
};

// Results that were completed and are not stored yet.
struct Backlog {
  int64_t results = 0;
  int64_t bytes = 0;  // of these results in memory
};

// The dispatcher's interface to the durable jobs. Only TakeRequests and
// PendingLengths read the store and may take a while: other methods never wait
// for a disk. Thread-safe.
class RequestQueue {
 public:
  virtual ~RequestQueue() = default;

  // Takes up to `max` requests without a result that were not handed out since
  // the process started, or were given back, of jobs that are not paused: by
  // job priority, then job age; of a job first those of which an earlier
  // process knew tokens, the one with the least left first, then in input
  // order. The requests of a line come together: the last one may go beyond
  // `max`. Empty when there are none. A
  // request that can't be read any more gets its error result here and is left
  // out. Waits while the backlog is long.
  virtual absl::StatusOr<std::vector<Request>> TakeRequests(size_t max) = 0;

  // Takes back requests that were handed out and not begun, to hand them out
  // again when it is their turn.
  virtual void GiveBack(std::vector<Request> requests) = 0;

  // Lengths of all requests without a result, handed out or not, for the
  // planner. A part of a very long job stands for all of it.
  virtual absl::StatusOr<LengthHistogram> PendingLengths() = 0;

  // Takes the result, which a thread of the queue's own brings to the store.
  // Exactly one result per request ever becomes visible.
  virtual void Complete(Request request, Generation generation) = 0;
  // The results not stored yet. Only the caller of Complete bounds them.
  virtual Backlog backlog() const = 0;

  // Takes new tokens of requests that are being generated, to store them, so
  // that a later process goes on from there. Each request's follow those taken
  // before, or replace them from their begin on.
  virtual void KeepTokens(std::vector<NewTokens> tokens) = 0;
  // Whether tokens that were taken are not stored yet.
  virtual bool keeping_tokens() const = 0;

  // Reports progress, for clients and metrics.
  virtual void ReportProgress(JobId job, const JobProgress& progress) = 0;
  // Reports the plan by which jobs run from now on, as JSON, or "" for none; it
  // is stored with each job that has not ended.
  virtual void ReportPlan(const std::string& plan) = 0;
  // Reports the copy of the model that answers requests from now on; it is kept
  // with the unfinished jobs, as answers of one job must be one copy's. It is
  // stored before any result that is completed later.
  virtual void ReportModel(const ModelContent& model) = 0;
  // Reports why nothing runs, as the detail of unfinished jobs, or "".
  virtual void ReportDetail(const std::string& detail) = 0;
};

}  // namespace sluice
