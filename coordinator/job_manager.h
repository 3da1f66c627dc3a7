#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "common/threads/clock.h"
#include "coordinator/request_queue.h"
#include "runtime/model/model_dir.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// The jobs: accepts them, keeps them in the store, hands their requests to the
// dispatcher and keeps their results. Everything acknowledged is on disk.
// Thread-safe.
class JobManager : public RequestQueue {
 public:
  struct Options {
    std::filesystem::path state_dir;   // holds sluice.db; created if missing
    std::filesystem::path input_root;  // for JobSpec.input_path; "" forbids it
    std::string served_model;          // the name that requests must ask for
    int32_t max_model_len = 0;
    int32_t default_max_tokens = kDefaultMaxTokens;
    int64_t max_line_bytes = 16 << 20;
    int64_t max_requests_per_job = 100'000'000;
    // A longer result line becomes an error. Stores hold at most 1e9 bytes.
    int64_t max_result_bytes = 256 << 20;
    const ModelDir* model = nullptr;       // generation defaults, eos ids
    const Tokenizer* tokenizer = nullptr;  // all must outlive the manager
    const ChatTemplate* chat_template = nullptr;  // null: chat lines are errors
    std::string no_chat_template;  // why it is null; "": the model has none
    const Clock* clock = nullptr;
    MetricsRegistry* metrics = nullptr;
    absl::Status Validate() const;
  };

  static absl::StatusOr<std::unique_ptr<JobManager>> Create(Options options);

  // Called (from any thread) when there may be new requests to take.
  virtual void SetOnWork(std::function<void()> on_work) = 0;
  // Called when a job was cancelled: stop generating its requests and Complete
  // them with kCancelled.
  virtual void SetOnCancel(std::function<void(JobId)> on_cancel) = 0;

  // An upload under way. Destroyed without Commit, the job never existed.
  class Upload {
   public:
    virtual ~Upload() = default;
    // Any cut of the input; validates the lines that it completes.
    virtual absl::Status Append(absl::string_view data) = 0;
    // Kept of a line that has begun.
    virtual size_t unfinished_bytes() const = 0;
    // Makes the job durable and starts it.
    virtual absl::StatusOr<v1::Job> Commit() = 0;
  };
  // With the request_id of a job that exists, an upload that makes none, and
  // whose Commit answers that job if its input was the same: kAlreadyExists if
  // not, or if the spec is not the same. kUnavailable while another upload with
  // the request_id is under way. `stopped`, if not null, is asked before every
  // line: once it says so, Append fails with kCancelled.
  virtual absl::StatusOr<std::unique_ptr<Upload>> BeginUpload(
      const v1::JobSpec& spec, std::function<bool()> stopped = nullptr) = 0;
  // Creates a job from spec.input_path: kPermissionDenied outside the root,
  // kNotFound; kCancelled, as above. With the request_id of a job that exists,
  // and the same spec, that job; the file is not read again.
  virtual absl::StatusOr<v1::Job> CreateFromPath(
      const v1::JobSpec& spec,
      const std::function<bool()>& stopped = nullptr) = 0;

  virtual absl::StatusOr<v1::Job> GetJob(const std::string& id) = 0;
  virtual absl::StatusOr<v1::ListJobsResponse> ListJobs(
      const v1::ListJobsRequest& request) = 0;
  virtual absl::StatusOr<v1::Job> CancelJob(const std::string& id) = 0;
  virtual absl::Status DeleteJob(const std::string& id) = 0;

  // Results with index >= offset, in order, up to the first one missing, at
  // most about `max_bytes` (at least one if there is one).
  virtual absl::StatusOr<v1::ResultChunk> ReadResults(const std::string& id,
                                                      int64_t offset,
                                                      int64_t max_bytes) = 0;

  // Waits until jobs have changed, ended or been deleted since the last call,
  // or the time-out passed; which ones. Meant for one caller, who tells all
  // that watch.
  virtual std::vector<std::string> WaitForChanges(absl::Duration timeout) = 0;

  // Before whoever completes requests ends: completing one waits no more for
  // results to be stored, as it does while a full disk takes none.
  virtual void BeginShutdown() = 0;
  // Commits what was completed so far. Called by the destructor too.
  virtual void Flush() = 0;
};

// "in_progress" and the like.
std::string JobStateName(v1::JobState state);

// Ended: completed, failed or cancelled.
bool IsTerminal(v1::JobState state);

}  // namespace sluice
