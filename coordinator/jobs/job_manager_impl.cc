// Changing jobs: creating, handing out, recording, cancelling. What only asks
// is in job_queries.cc.

#include "coordinator/jobs/job_manager_impl.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "coordinator/jobs/job_ids.h"
#include "coordinator/jobs/job_spec.h"
#include "coordinator/jobs/model_record.h"
#include "coordinator/jobs/requests/input_file.h"
#include "coordinator/jobs/requests/request_codec.h"

namespace sluice {
namespace {

constexpr int64_t kTakeRows = 4096;
// Of one job, for the planner.
constexpr int64_t kMostCountedRequests = 32768;
constexpr int64_t kCancelRows = 1000;
constexpr int64_t kPurgeRows = 2000;
constexpr size_t kReadBytes = 1 << 20;
constexpr absl::Duration kGaugeInterval = absl::Seconds(5);
constexpr char kModelRecord[] = "model";

// Of requests and jobs that do not say; the model's own goes first.
int64_t DefaultMaxTokens(const JobManager::Options& options) {
  int64_t tokens = options.default_max_tokens;
  if (options.model != nullptr) {
    tokens = options.model->generation_defaults().max_new_tokens.value_or(
        options.default_max_tokens);
  }
  return std::min<int64_t>(tokens, options.max_model_len);
}

}  // namespace

std::string JobStateName(v1::JobState state) {
  return absl::AsciiStrToLower(
      absl::StripPrefix(v1::JobState_Name(state), "JOB_STATE_"));
}

bool IsTerminal(v1::JobState state) {
  return state == v1::JOB_STATE_COMPLETED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

absl::Status JobManager::Options::Validate() const {
  const auto wrong = [](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat("JobManager: ", what));
  };
  if (state_dir.empty()) return wrong("state_dir is missing");
  if (served_model.empty()) return wrong("served_model is missing");
  if (max_model_len < 2) return wrong("max_model_len must be at least 2");
  if (default_max_tokens < 1) return wrong("default_max_tokens must be >= 1");
  if (max_line_bytes < 1) return wrong("max_line_bytes must be at least 1");
  if (max_result_bytes < 1) return wrong("max_result_bytes must be at least 1");
  if (max_requests_per_job < 1) {
    return wrong("max_requests_per_job must be at least 1");
  }
  if (tokenizer == nullptr || clock == nullptr || metrics == nullptr) {
    return wrong("tokenizer, clock and metrics are needed");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<JobManager>> JobManager::Create(
    Options options) {
  return JobManagerImpl::Create(std::move(options));
}

absl::StatusOr<std::unique_ptr<JobManager>> JobManagerImpl::Create(
    Options options) {
  SLUICE_RETURN_IF_ERROR(options.Validate());
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<StateLock> lock,
                          StateLock::Acquire(options.state_dir));
  std::unique_ptr<JobManagerImpl> manager(
      new JobManagerImpl(std::move(options), std::move(lock)));
  SLUICE_RETURN_IF_ERROR(manager->Open());
  return std::unique_ptr<JobManager>(std::move(manager));
}

JobManagerImpl::JobManagerImpl(Options options, std::unique_ptr<StateLock> lock)
    : options_(std::move(options)),
      state_lock_(std::move(lock)),
      metrics_(options_.metrics),
      token_texts_(options_.tokenizer),
      live_(options_.served_model, DefaultMaxTokens(options_), options_.clock,
            &metrics_) {}

JobManagerImpl::~JobManagerImpl() {
  if (writer_) writer_->Stop();
}

absl::Status JobManagerImpl::Open() {
  // Duplicate checks of a process that was killed at the wrong moment.
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(options_.state_dir, error)) {
    if (absl::StartsWith(entry.path().filename().string(), "upload-")) {
      std::filesystem::remove(entry.path(), error);
    }
  }
  SLUICE_ASSIGN_OR_RETURN(
      store_,
      OpenSqliteJobStore({.path = options_.state_dir / "sluice.db",
                          .commit_seconds = metrics_.journal_fsync_seconds()}));
  SLUICE_RETURN_IF_ERROR(store_->MarkUnpublishedDeleted());
  SLUICE_ASSIGN_OR_RETURN(const std::vector<JobRecord> unfinished,
                          store_->UnfinishedJobs());
  for (const JobRecord& job : unfinished) {
    live_.Add(job);
    if (job.state == v1::JOB_STATE_CANCELLING) {
      MutexLock lock(&mu_);
      cancelling_.insert(job.id);
    }
    LogInfo(absl::StrCat("job=", FormatJobId(job.id),
                         " resumed, pending=", job.pending()));
  }
  for (const v1::JobState state :
       {v1::JOB_STATE_COMPLETED, v1::JOB_STATE_FAILED,
        v1::JOB_STATE_CANCELLED}) {
    SLUICE_ASSIGN_OR_RETURN(const int64_t count, store_->CountJobs(state));
    live_.CountEnded(state, count);
  }
  state_gauges_ = std::make_unique<RegularUpdate>(
      [this] { metrics_.SetState(options_.state_dir); }, kGaugeInterval);
  ResultWriter::Options writer;
  writer.format = [this](const ResultHead& head, const Generation& generation) {
    return Format(head, generation);
  };
  writer.commit = [this](absl::Span<const StoredResult> results) {
    return CommitQueued(results);
  };
  writer.background = [this] { return DoBackgroundWork(); };
  writer.on_store_state = [this](const absl::Status& s) { OnStoreState(s); };
  writer_ = std::make_unique<ResultWriter>(std::move(writer));
  return absl::OkStatus();
}

int64_t JobManagerImpl::NowMicros() const {
  return absl::ToUnixMicros(options_.clock->Now());
}

void JobManagerImpl::SetOnWork(std::function<void()> on_work) {
  MutexLock lock(&mu_);
  on_work_ = std::move(on_work);
}

void JobManagerImpl::SetOnCancel(std::function<void(JobId)> on_cancel) {
  MutexLock lock(&mu_);
  on_cancel_ = std::move(on_cancel);
}

// -- Creating.

absl::StatusOr<JobRecord> JobManagerImpl::FindExisting(
    const v1::JobSpec& spec) {
  if (spec.request_id().empty()) return absl::NotFoundError("no request_id");
  SLUICE_ASSIGN_OR_RETURN(JobRecord job,
                          store_->FindByRequestId(spec.request_id()));
  if (!google::protobuf::util::MessageDifferencer::Equals(job.spec, spec)) {
    return absl::AlreadyExistsError(absl::StrCat(
        FormatJobId(job.id), " has the request_id ",
        QuoteForMessage(spec.request_id()),
        " and another spec; give a new job a request_id of its own"));
  }
  return job;
}

std::unique_ptr<JobManager::Upload> JobManagerImpl::Repeat(JobRecord job) {
  return std::make_unique<RepeatedUpload>(
      job.content, [this, job](bool same) -> absl::StatusOr<v1::Job> {
        // As it is now: the upload took its time.
        if (same) {
          absl::StatusOr<v1::Job> now = GetJob(FormatJobId(job.id));
          if (!absl::IsNotFound(now.status())) return now;
          return absl::UnavailableError(
              absl::StrCat(FormatJobId(job.id),
                           ", which had this request_id, was deleted "
                           "meanwhile; send it again"));
        }
        return absl::AlreadyExistsError(absl::StrCat(
            FormatJobId(job.id), " has the request_id ",
            QuoteForMessage(job.spec.request_id()),
            " and other requests; give a new job a request_id of its own"));
      });
}

absl::StatusOr<std::unique_ptr<JobManager::Upload>> JobManagerImpl::BeginUpload(
    const v1::JobSpec& spec, std::function<bool()> stopped) {
  SLUICE_RETURN_IF_ERROR(ValidateJobSpec(spec, options_.served_model));
  auto found = FindExisting(spec);
  if (found.ok()) return Repeat(*std::move(found));
  if (!absl::IsNotFound(found.status())) return found.status();

  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<CustomIdSet> custom_ids,
                          CustomIdSet::Create(options_.state_dir));
  JobRecord job;
  job.model = options_.served_model;
  job.spec = spec;
  job.created_us = NowMicros();
  const absl::Status created = store_->CreateJob(&job);
  if (absl::IsAlreadyExists(created)) {
    // Its upload ended just now, or is still under way.
    found = FindExisting(spec);
    if (found.ok()) return Repeat(*std::move(found));
    if (!absl::IsNotFound(found.status())) return found.status();
    return absl::UnavailableError(
        "an upload with this request_id is under way; try again when it has "
        "ended");
  }
  SLUICE_RETURN_IF_ERROR(created);

  JobUpload::Options upload;
  upload.job = job.id;
  upload.format = spec.format();
  upload.max_line_bytes = options_.max_line_bytes;
  upload.max_requests = options_.max_requests_per_job;
  upload.store = store_.get();
  upload.long_line = &long_line_mu_;
  upload.publish = [this](JobId id, const JobUpload::Totals& totals) {
    return Publish(id, totals);
  };
  upload.abandon = [this](JobId id) { Abandon(id); };
  upload.stopped = std::move(stopped);
  live_.CountUpload(1);
  RequestParser parser({.served_model = options_.served_model,
                        .max_model_len = options_.max_model_len,
                        .default_max_tokens = options_.default_max_tokens,
                        .model = options_.model,
                        .tokenizer = options_.tokenizer,
                        .chat_template = options_.chat_template,
                        .no_chat_template = options_.no_chat_template},
                       spec.defaults());
  return std::make_unique<JobUpload>(std::move(upload), std::move(parser),
                                     std::move(custom_ids));
}

absl::StatusOr<v1::Job> JobManagerImpl::CreateFromPath(
    const v1::JobSpec& spec, const std::function<bool()>& stopped) {
  const auto found = FindExisting(spec);
  if (found.ok()) return live_.Describe(*found);
  if (!absl::IsNotFound(found.status())) return found.status();
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<NamedInputFile> file,
      NamedInputFile::Open(options_.input_root, spec.input_path()));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Upload> upload,
                          BeginUpload(spec, stopped));
  std::string buffer(kReadBytes, '\0');
  while (true) {
    if (stopped && stopped()) return JobUpload::Stopped();
    SLUICE_ASSIGN_OR_RETURN(const size_t n,
                            file->Read(buffer.data(), buffer.size()));
    if (n == 0) return upload->Commit();
    SLUICE_RETURN_IF_ERROR(upload->Append(absl::string_view(buffer.data(), n)));
  }
}

absl::StatusOr<v1::Job> JobManagerImpl::Publish(
    JobId id, const JobUpload::Totals& totals) {
  JobRecord job;
  {
    MutexLock lock(&commit_mu_);
    SLUICE_ASSIGN_OR_RETURN(job, store_->PublishJob(id, totals, NowMicros()));
    live_.CountUpload(-1);
    live_.Add(job);
    if (!plan_.empty()) RecordPlan();
  }
  for (const auto& [code, count] : totals.errors) {
    metrics_.CountErrors(code, count);
  }
  LogInfo(absl::StrCat("job=", FormatJobId(id), " accepted, requests=",
                       totals.lines, " bad_lines=", totals.failed));
  std::function<void()> on_work;
  {
    MutexLock lock(&mu_);
    on_work = on_work_;
  }
  if (on_work) on_work();
  return live_.Describe(job);
}

void JobManagerImpl::Abandon(JobId job) {
  live_.CountUpload(-1);
  const absl::Status status = store_->MarkDeleted(job);
  if (!status.ok()) {
    MutexLock lock(&mu_);
    abandoned_.insert(job);
  }
  writer_->Wake();
}

// -- Handing out.

absl::StatusOr<Request> JobManagerImpl::Restore(const LiveJobs::Cursor& cursor,
                                                StoredRequest stored) const {
  Request request;
  request.job = cursor.job;
  if (cursor.accepted_us > 0) {
    request.accepted = absl::FromUnixMicros(cursor.accepted_us);
  }
  request.index = stored.index;
  request.custom_id = std::move(stored.custom_id);
  request.prompt = std::move(stored.prompt);
  SLUICE_RETURN_IF_ERROR(DecodeRequestParams(stored.params, &request));
  // The model directory may have changed since the request was checked.
  const int32_t vocab_size = options_.model ? options_.model->spec().vocab_size
                                            : options_.tokenizer->vocab_size();
  const auto out_of_range = [&](int32_t id) {
    return id < 0 || id >= vocab_size;
  };
  bool fits =
      !request.prompt.empty() && request.max_tokens >= (request.echo ? 0 : 1) &&
      request.sampling.logprobs <= kMaxTopLogprobs &&
      static_cast<int64_t>(request.prompt.size()) + request.max_tokens <=
          options_.max_model_len &&
      std::none_of(request.prompt.begin(), request.prompt.end(), out_of_range);
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    fits = fits && !out_of_range(id);
  }
  if (!fits) {
    return absl::FailedPreconditionError(
        "the request does not fit the model any more: vocabulary or maximum "
        "length changed since it was accepted; submit it again");
  }
  return request;
}

absl::StatusOr<std::vector<Request>> JobManagerImpl::TakeRequests(size_t max) {
  MutexLock take_lock(&take_mu_);
  std::vector<Request> taken;
  while (taken.size() < max) {
    const auto cursor = live_.NextRunnable();
    if (!cursor) break;
    const int64_t limit =
        std::min<int64_t>(static_cast<int64_t>(max - taken.size()), kTakeRows);
    auto rows = store_->ReadRequests(cursor->job, cursor->next_index, limit);
    if (!rows.ok()) {
      if (taken.empty()) return rows.status();
      break;
    }
    const int64_t next =
        rows->empty() ? cursor->next_index : rows->back().index + 1;
    const auto count = static_cast<int64_t>(rows->size());
    // A job that was cancelled meanwhile gives nothing more.
    if (!live_.Advance(cursor->job, next, count, rows->empty())) continue;
    for (StoredRequest& row : *rows) {
      ResultHead head;
      head.job = cursor->job;
      head.index = row.index;
      head.custom_id = row.custom_id;
      head.prompt_tokens = static_cast<int64_t>(row.prompt.size());
      auto request = Restore(*cursor, std::move(row));
      if (request.ok()) {
        taken.push_back(*std::move(request));
        continue;
      }
      Generation failed;
      failed.status = request.status();
      live_.CountQueued(head.job, 1);
      writer_->Push(std::move(head), std::move(failed));
    }
  }
  return taken;
}

absl::StatusOr<LengthHistogram> JobManagerImpl::PendingLengths() {
  LengthHistogram lengths;
  SLUICE_ASSIGN_OR_RETURN(const std::vector<JobRecord> jobs,
                          store_->UnfinishedJobs());
  for (const JobRecord& job : jobs) {
    if (job.state != v1::JOB_STATE_IN_PROGRESS) continue;
    LengthHistogram read;
    for (int64_t from = 0; read.requests() < kMostCountedRequests;) {
      SLUICE_ASSIGN_OR_RETURN(const std::vector<StoredRequest> rows,
                              store_->ReadRequests(job.id, from, kTakeRows));
      for (const StoredRequest& row : rows) {
        Request request;
        // One that can't be read any more ends with an error when it is taken.
        if (!DecodeRequestParams(row.params, &request).ok()) continue;
        read.Add(static_cast<int32_t>(row.prompt.size()), request.max_tokens);
      }
      if (rows.empty()) break;
      from = rows.back().index + 1;
    }
    if (read.requests() == 0) continue;
    // Each that was read stands for as many as make up all.
    lengths.Add(read, std::max<int64_t>(1, job.pending() / read.requests()));
  }
  return lengths;
}

// -- Recording.

void JobManagerImpl::ReportPlan(const std::string& plan) {
  MutexLock lock(&commit_mu_);
  plan_ = plan;
  RecordPlan();
}

void JobManagerImpl::ReportModel(const ModelContent& model) {
  MutexLock lock(&commit_mu_);
  model_ = model;
  const absl::Status stored = StoreModel();
  if (!stored.ok()) LogWarning(stored.message());  // no result is stored either
}

absl::Status JobManagerImpl::StoreModel() {
  if (!model_) return absl::OkStatus();
  const absl::Status written =
      WriteModelRecord(options_.state_dir / kModelRecord, *model_);
  if (written.ok()) {
    model_.reset();
    return absl::OkStatus();
  }
  return Annotate(written, "which weights jobs began with could not be stored");
}

ModelContent JobManagerImpl::ReportedModel() {
  absl::StatusOr<ModelContent> model =
      ReadModelRecord(options_.state_dir / kModelRecord);
  if (model.ok()) return *std::move(model);
  if (!absl::IsNotFound(model.status())) {
    LogWarning(absl::StrCat(model.status().message(),
                            "; which weights jobs began with is not known"));
  }
  return {};
}

bool JobManagerImpl::HasBegunJobs() { return live_.AnyBegun(); }

void JobManagerImpl::RecordPlan() {
  absl::StatusOr<std::vector<JobRecord>> jobs = store_->SetPlan(plan_);
  if (!jobs.ok()) {
    LogWarning(absl::StrCat("the plan could not be stored: ",
                            jobs.status().ToString()));
    return;
  }
  for (const JobRecord& job : *jobs) live_.Update(job);
}

void JobManagerImpl::Complete(const Request& request, Generation generation) {
  live_.CountQueued(request.job, 1);
  writer_->Push(HeadOf(request), std::move(generation));
}

StoredResult JobManagerImpl::Format(const ResultHead& head,
                                    const Generation& generation) {
  StoredResult result;
  result.job = head.job;
  result.index = head.index;
  result.prompt_tokens = head.prompt_tokens;
  result.max_tokens = head.max_tokens;
  result.replays = live_.TakeReplays(head.job);
  if (generation.status.ok()) {
    result.kind = ResultKind::kAnswer;
    result.line = FormatAnswer(head, generation, options_.served_model,
                               options_.clock->Now(), &token_texts_);
    const auto bytes = static_cast<int64_t>(result.line.size());
    if (bytes > options_.max_result_bytes) {
      const LineError error = {
          "result_too_large",
          absl::StrCat("the answer takes ", bytes, " bytes, more than the ",
                       options_.max_result_bytes,
                       " that are kept of one; ask for fewer logprobs or cut "
                       "the prompt"),
          ""};
      result.kind = ResultKind::kError;
      result.line = FormatError(head.job, head.index, head.custom_id, error);
      result.outcome = error.code;
      return result;
    }
    result.generation_tokens = generation.generated;
    const bool stopped = generation.finish_reason == FinishReason::kStop;
    result.outcome = stopped ? "stop" : "length";
    result.cut_by_default = head.max_tokens_by_default && !stopped;
    return result;
  }
  const LineError error = ErrorOfStatus(generation.status);
  result.kind = absl::IsCancelled(generation.status) ? ResultKind::kCancelled
                                                     : ResultKind::kError;
  result.line = FormatError(head.job, head.index, head.custom_id, error);
  result.outcome = error.code;
  return result;
}

absl::Status JobManagerImpl::Commit(absl::Span<const StoredResult> results) {
  JobStore::Commit commit;
  {
    MutexLock lock(&commit_mu_);
    SLUICE_RETURN_IF_ERROR(StoreModel());
    SLUICE_ASSIGN_OR_RETURN(commit,
                            store_->CommitResults(results, NowMicros()));
    // Counted first: who sees the job end sees its results counted.
    for (size_t i = 0; i < results.size(); ++i) {
      if (commit.recorded[i]) metrics_.CountResult(results[i]);
    }
    for (const JobRecord& job : commit.jobs) live_.Update(job);
  }
  for (const JobRecord& job : commit.jobs) {
    if (!IsTerminal(job.state)) continue;
    LogInfo(absl::StrCat("job=", FormatJobId(job.id), " ",
                         JobStateName(job.state), ", answers=", job.completed,
                         " errors=", job.failed));
  }
  return absl::OkStatus();
}

absl::Status JobManagerImpl::CommitQueued(
    absl::Span<const StoredResult> results) {
  SLUICE_RETURN_IF_ERROR(Commit(results));
  for (const StoredResult& result : results) live_.CountQueued(result.job, -1);
  return absl::OkStatus();
}

void JobManagerImpl::OnStoreState(const absl::Status& status) {
  if (status.ok()) {
    if (live_.SetStoreDetail("")) LogInfo("results are stored again");
    return;
  }
  const std::string detail =
      absl::StrCat("results cannot be stored: ", status.message());
  if (live_.SetStoreDetail(detail)) {
    LogError(absl::StrCat(detail, "; will be tried again"));
  }
}

void JobManagerImpl::BeginShutdown() { writer_->StopWaiting(); }

void JobManagerImpl::Flush() { writer_->Flush(); }

void JobManagerImpl::ReportProgress(JobId job, int64_t running,
                                    int64_t new_tokens, int64_t prompt_tokens) {
  live_.AddProgress(job, running, new_tokens, prompt_tokens);
}

void JobManagerImpl::ReportReplays(JobId job, int64_t count) {
  live_.AddReplays(job, count);
}

void JobManagerImpl::ReportDetail(const std::string& detail) {
  live_.SetDetail(detail);
}

// -- Cancelling and deleting.

absl::StatusOr<v1::Job> JobManagerImpl::CancelJob(const std::string& id) {
  SLUICE_ASSIGN_OR_RETURN(const JobId job_id, ParseJobId(id));
  JobRecord job;
  {
    MutexLock lock(&commit_mu_);
    SLUICE_ASSIGN_OR_RETURN(job, store_->GetJob(job_id));
    if (job.state == v1::JOB_STATE_IN_PROGRESS) {
      SLUICE_ASSIGN_OR_RETURN(job, store_->BeginCancel(job_id));
      live_.Update(job);
    }
  }
  if (job.state == v1::JOB_STATE_CANCELLING) {
    std::function<void(JobId)> on_cancel;
    {
      MutexLock lock(&mu_);
      cancelling_.insert(job_id);
      on_cancel = on_cancel_;
    }
    writer_->Wake();
    if (on_cancel) on_cancel(job_id);
  }
  return live_.Describe(job);
}

absl::Status JobManagerImpl::DeleteJob(const std::string& id) {
  SLUICE_ASSIGN_OR_RETURN(const JobId job_id, ParseJobId(id));
  {
    MutexLock lock(&commit_mu_);
    SLUICE_ASSIGN_OR_RETURN(const JobRecord job, store_->GetJob(job_id));
    if (!IsTerminal(job.state)) {
      return absl::FailedPreconditionError(
          absl::StrCat(id, " is ", JobStateName(job.state),
                       "; cancel it and wait for its end before deleting it"));
    }
    SLUICE_RETURN_IF_ERROR(store_->MarkDeleted(job_id));
    live_.CountEnded(job.state, -1);
    live_.NotifyDeleted(job_id);
  }
  writer_->Wake();
  return absl::OkStatus();
}

absl::StatusOr<bool> JobManagerImpl::DoBackgroundWork() {
  SLUICE_RETURN_IF_ERROR(RemoveAbandoned());
  const absl::StatusOr<bool> cancelled = CancelSome();
  if (cancelled.ok() && *cancelled) return true;
  // On a full disk, this makes room for the other.
  SLUICE_ASSIGN_OR_RETURN(const bool purged, store_->PurgeSome(kPurgeRows));
  if (purged) return true;
  return cancelled;
}

absl::Status JobManagerImpl::RemoveAbandoned() {
  while (true) {
    JobId job;
    {
      MutexLock lock(&mu_);
      if (abandoned_.empty()) return absl::OkStatus();
      job = *abandoned_.begin();
    }
    const absl::Status status = store_->MarkDeleted(job);
    if (!status.ok() && !absl::IsNotFound(status)) return status;
    MutexLock lock(&mu_);
    abandoned_.erase(job);
  }
}

absl::StatusOr<bool> JobManagerImpl::CancelSome() {
  JobId job;
  {
    MutexLock lock(&mu_);
    if (cancelling_.empty()) return false;
    job = *cancelling_.begin();
  }
  SLUICE_ASSIGN_OR_RETURN(const std::vector<StoredRequest> rows,
                          store_->ReadRequests(job, 0, kCancelRows));
  const absl::Status cancelled = absl::CancelledError("");
  std::vector<StoredResult> results;
  for (const StoredRequest& row : rows) {
    ResultHead head;
    head.job = job;
    head.index = row.index;
    head.custom_id = row.custom_id;
    Generation generation;
    generation.status = cancelled;
    results.push_back(Format(head, generation));
  }
  if (!results.empty()) SLUICE_RETURN_IF_ERROR(Commit(results));
  if (rows.empty()) {
    MutexLock lock(&mu_);
    cancelling_.erase(job);
  }
  return true;
}

}  // namespace sluice
