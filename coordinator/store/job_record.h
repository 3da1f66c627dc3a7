#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/step_plan.h"
#include "common/types.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// A job as it is stored. Times are microseconds since the Unix epoch; 0: not
// yet.
struct JobRecord {
  JobId id;
  std::string model;  // served when the job was created
  v1::JobSpec spec;
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  int64_t created_us = 0;
  int64_t started_us = 0;
  int64_t finished_us = 0;
  // Numbers of requests; `failed` includes `cancelled`.
  int64_t total = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t cancelled = 0;
  // Tokens of requests that ended with an answer.
  int64_t prompt_tokens = 0;
  int64_t generation_tokens = 0;
  // Of their prompts', those that other requests had computed.
  int64_t cached_tokens = 0;
  int64_t replays = 0;
  // The prompt tokens and max_tokens of all requests except those that ended
  // with an error. Both 0: not known, as the job was made by an earlier
  // version.
  int64_t wanted_prompt_tokens = 0;
  int64_t wanted_max_tokens = 0;
  // The max_tokens of requests that ended with an answer.
  int64_t answered_max_tokens = 0;
  // Requests with the default of max_tokens, and those that it ended.
  int64_t by_default = 0;
  int64_t cut_by_default = 0;
  std::string plan;  // JSON of the last plan that it ran by; "": none was made
  std::string
      content;  // a hash of its input; "": the job is of an early version

  int64_t input_bytes = 0;  // 0: the job is of an early version

  std::string tenant;    // whose it is; "": of those without a token
  bool paused = false;   // no request of it is begun
  int64_t priority = 0;  // higher first; the spec's at first

  int64_t pending() const { return total - completed - failed; }
};

// A request without a result.
struct StoredRequest {
  int64_t index = 0;
  std::string custom_id;
  std::vector<int32_t> prompt;
  std::string params;  // opaque to the store
  // Whether it is not what was stored. Set by reading.
  bool damaged = false;
};

// Tokens of the answer of a request without a result.
struct StoredProgress {
  JobId job;
  int64_t index = 0;
  int32_t begin = 0;  // tokens of the answer before these
  std::vector<int32_t> tokens;
  std::vector<SampledToken> logprobs;  // parallel, if the request asked for any
  int32_t part = 0;                    // of the request, among its line's
};

// What is known of a job's requests without a result.
struct ReadProgress {
  std::vector<StoredProgress> requests;  // by index and part; begin is 0
  // Rows of the log that can't be used: changed by the disk, or written where
  // answers depend on other things.
  int64_t damaged = 0;
  int64_t foreign = 0;
};

// A result as it is read.
struct StoredLine {
  int64_t index = 0;
  bool is_error = false;
  std::string line;
  bool damaged = false;  // it is not what was stored
};

enum class ResultKind { kAnswer, kError, kCancelled };

struct StoredResult {
  JobId job;
  int64_t index = 0;
  ResultKind kind = ResultKind::kAnswer;
  std::string line;
  int64_t prompt_tokens = 0;  // of the request
  int64_t max_tokens = 0;     // of the request
  // Tokens, which are added to the job's.
  int64_t generation_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t replays = 0;
  bool cut_by_default = false;
  // A finish reason or an error code, for the caller that commits it. Not
  // stored.
  std::string outcome;
};

// The totals of an upload.
struct JobTotals {
  int64_t lines = 0;
  int64_t failed = 0;  // lines that are no request
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;
  int64_t by_default = 0;  // requests with the default of max_tokens
  std::string content;     // a hash of the input
  int64_t bytes = 0;       // of the input
  std::map<std::string, int64_t> errors;  // of lines, by code; not stored
};

}  // namespace sluice
