#include "coordinator/jobs/job_manager.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/compression/compression.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/jobs/job_upload.h"
#include "coordinator/jobs/model_record.h"
#include "coordinator/jobs/requests/input_file.h"
#include "coordinator/jobs/requests/request_codec.h"
#include "coordinator/jobs/results/result_format.h"
#include "coordinator/planning/prompt_beginnings.h"
#include "runtime/text/detokenizer.h"

namespace sluice {
namespace {

constexpr int64_t kTakeRows = 4096;
// Of requests that wait for others of their lines.
// The planner counts at most this many requests of one job.
constexpr int64_t kMaxCountedRequests = 32768;
constexpr int64_t kCancelRows = 1000;
constexpr int64_t kPurgeRows = 2000;
constexpr size_t kReadBytes = 1 << 20;
constexpr absl::Duration kSampleInterval = absl::Seconds(2);
constexpr char kModelRecord[] = "model";

// The default of requests and jobs without one; the model's own goes first.
int64_t DefaultMaxTokens(const RequestParser::Options& options) {
  int64_t tokens = options.default_max_tokens;
  if (options.model != nullptr) {
    tokens = options.model->generation_defaults().max_new_tokens.value_or(
        options.default_max_tokens);
  }
  return std::min<int64_t>(tokens, options.max_model_len);
}

// kFailedPrecondition if prompts are to be chats, and can't.
absl::Status CheckChats(const v1::RequestDefaults& defaults,
                        const RequestParser::Options& options) {
  if (!defaults.chat() && !defaults.has_system()) return absl::OkStatus();
  if (options.chat_template != nullptr) return absl::OkStatus();
  return FailedPrecondition(options.no_chat_template.empty()
                                ? "the model has no chat template"
                                : options.no_chat_template,
                            ", which --chat and --system need; leave them out");
}

}  // namespace

absl::Status JobManager::Options::Validate() const {
  const auto wrong = [](const char* what) {
    return InvalidArgument("JobManager: ", what);
  };
  if (state_dir.empty()) return wrong("state_dir is missing");
  if (requests.served_model.empty()) return wrong("served_model is missing");
  if (requests.max_model_len < 2) {
    return wrong("max_model_len must be at least 2");
  }
  if (requests.default_max_tokens < 1) {
    return wrong("default_max_tokens must be >= 1");
  }
  if (max_line_bytes < 1) return wrong("max_line_bytes must be at least 1");
  if (max_result_bytes < 1) return wrong("max_result_bytes must be at least 1");
  if (max_requests_per_job < 1) {
    return wrong("max_requests_per_job must be at least 1");
  }
  if (requests.tokenizer == nullptr || clock == nullptr || metrics == nullptr) {
    return wrong("tokenizer, clock and metrics are needed");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<JobManager>> JobManager::Create(
    Options options) {
  SLUICE_RETURN_IF_ERROR(options.Validate());
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<StateLock> lock,
                          StateLock::Acquire(options.state_dir));
  std::unique_ptr<JobManager> manager(
      new JobManager(std::move(options), std::move(lock)));
  SLUICE_RETURN_IF_ERROR(manager->Open());
  return std::unique_ptr<JobManager>(std::move(manager));
}

JobManager::JobManager(Options options, std::unique_ptr<StateLock> lock)
    : options_(std::move(options)),
      state_lock_(std::move(lock)),
      metrics_(options_.metrics),
      token_texts_(options_.requests.tokenizer),
      live_(options_.requests.served_model, DefaultMaxTokens(options_.requests),
            options_.clock, &metrics_),
      quotas_({options_.quota_of,
               [this](const std::string& tenant) { return RetryDelay(tenant); },
               &metrics_}) {}

JobManager::~JobManager() {
  if (!writer_) return;
  writer_->Stop();
  MutexLock lock(&commit_mu_);
  StoreReports().IgnoreError();  // logged already
  if (const absl::Status kept = StoreTokens(); !kept.ok()) {
    LogError("tokens of unfinished requests are not saved: ", kept.message());
  }
}

absl::Status JobManager::Open() {
  // A killed process may have left files of duplicate checks.
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(options_.state_dir, error)) {
    if (absl::StartsWith(entry.path().filename().string(), "upload-")) {
      std::filesystem::remove(entry.path(), error);
    }
  }
  SLUICE_ASSIGN_OR_RETURN(store_,
                          JobStore::Open(options_.state_dir / "sluice.db",
                                         metrics_.journal_fsync_seconds()));
  SLUICE_RETURN_IF_ERROR(store_->MarkUnpublishedDeleted());
  SLUICE_ASSIGN_OR_RETURN(const std::vector<JobRecord> unfinished,
                          store_->UnfinishedJobs());
  for (const JobRecord& job : unfinished) {
    live_.Add(job);
    quotas_.Update(job);
    if (job.state == v1::JOB_STATE_CANCELLING) {
      MutexLock lock(&mu_);
      cancelling_.insert(job.id);
    }
    live_.AddEvent(job.id, "restart",
                   absl::StrCat("the coordinator started anew, with ",
                                job.pending(), " requests to do"));
    LogInfo(LogJob(FormatJobId(job.id)), " resumed, pending=", job.pending());
    if (job.state == v1::JOB_STATE_IN_PROGRESS) {
      SLUICE_RETURN_IF_ERROR(Resume(job));
    }
  }
  for (const v1::JobState state :
       {v1::JOB_STATE_COMPLETED, v1::JOB_STATE_FAILED,
        v1::JOB_STATE_CANCELLED}) {
    SLUICE_ASSIGN_OR_RETURN(const int64_t count, store_->CountJobs(state));
    live_.CountEnded(state, count);
  }
  state_gauges_ = std::make_unique<RegularUpdate>(
      [this] {
        live_.Sample();
        metrics_.SetState(options_.state_dir);
      },
      kSampleInterval);
  writer_ = std::make_unique<ResultWriter>(ResultWriter::Options(),
                                           static_cast<ResultSink*>(this));
  return absl::OkStatus();
}

int64_t JobManager::NowMicros() const {
  return absl::ToUnixMicros(options_.clock->Now());
}

void JobManager::SetListener(Listener listener) {
  MutexLock lock(&mu_);
  listener_ = std::move(listener);
}

JobManager::Listener JobManager::listener() const {
  MutexLock lock(&mu_);
  return listener_;
}

// -- Creating.

absl::StatusOr<JobRecord> JobManager::FindExisting(const std::string& tenant,
                                                   const v1::JobSpec& spec) {
  if (spec.request_id().empty()) return absl::NotFoundError("no request_id");
  SLUICE_ASSIGN_OR_RETURN(JobRecord job,
                          store_->FindByRequestId(tenant, spec.request_id()));
  if (!google::protobuf::util::MessageDifferencer::Equals(job.spec, spec)) {
    return absl::AlreadyExistsError(absl::StrCat(
        FormatJobId(job.id), " has the request_id ",
        QuoteForMessage(spec.request_id()),
        " and another spec; give a new job a request_id of its own"));
  }
  return job;
}

std::unique_ptr<JobManager::Upload> JobManager::Repeat(JobRecord job) {
  return std::make_unique<RepeatedUpload>(
      job.content, [this, job](bool same) -> absl::StatusOr<v1::Job> {
        // The job is read again, as the upload may have taken long.
        if (same) {
          absl::StatusOr<v1::Job> now = GetJob(FormatJobId(job.id));
          if (!absl::IsNotFound(now.status())) return now;
          return Unavailable(FormatJobId(job.id),
                             ", which had this request_id, was deleted "
                             "meanwhile; send it again");
        }
        return absl::AlreadyExistsError(absl::StrCat(
            FormatJobId(job.id), " has the request_id ",
            QuoteForMessage(job.spec.request_id()),
            " and other requests; give a new job a request_id of its own"));
      });
}

absl::StatusOr<std::unique_ptr<JobManager::Upload>> JobManager::BeginUpload(
    const v1::JobSpec& spec, std::function<bool()> stopped,
    const std::string& tenant) {
  SLUICE_RETURN_IF_ERROR(ValidateJobSpec(spec, options_.requests.served_model));
  SLUICE_RETURN_IF_ERROR(CheckChats(spec.defaults(), options_.requests));
  auto found = FindExisting(tenant, spec);
  if (found.ok()) return Repeat(*std::move(found));
  if (!absl::IsNotFound(found.status())) return found.status();

  SLUICE_RETURN_IF_ERROR(quotas_.CheckRoom(tenant));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<CustomIdSet> custom_ids,
                          CustomIdSet::Create(options_.state_dir));
  JobRecord job;
  job.model = options_.requests.served_model;
  job.spec = spec;
  job.tenant = tenant;
  job.created_us = NowMicros();
  const absl::Status created = store_->CreateJob(&job);
  if (absl::IsAlreadyExists(created)) {
    // The other upload ended just now, or is still running.
    found = FindExisting(tenant, spec);
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
  upload.table = spec.table();
  upload.max_line_bytes = options_.max_line_bytes;
  upload.max_requests = options_.max_requests_per_job;
  upload.store = store_.get();
  upload.long_line = &long_line_mu_;
  upload.tenant = tenant;
  upload.quotas = &quotas_;
  upload.publish = [this](JobId id, const JobTotals& totals) {
    return Publish(id, totals);
  };
  upload.abandon = [this](JobId id) { Abandon(id); };
  upload.stopped = std::move(stopped);
  live_.CountUpload(1);
  return std::make_unique<JobUpload>(
      std::move(upload), RequestParser(options_.requests, spec.defaults()),
      std::move(custom_ids));
}

absl::StatusOr<v1::Job> JobManager::CreateFromPath(
    const v1::JobSpec& spec, const std::function<bool()>& stopped,
    const std::string& tenant) {
  const auto found = FindExisting(tenant, spec);
  if (found.ok()) return live_.Describe(*found);
  if (!absl::IsNotFound(found.status())) return found.status();
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<NamedInputFile> file,
      NamedInputFile::Open(options_.input_root, spec.input_path()));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Upload> upload,
                          BeginUpload(spec, stopped, tenant));
  DecompressingReader reader(
      [&](char* data, size_t size) { return file->Read(data, size); });
  std::string buffer(kReadBytes, '\0');
  while (true) {
    if (stopped && stopped()) return JobUpload::Stopped();
    SLUICE_ASSIGN_OR_RETURN(
        const size_t n,
        Annotate(reader.Read(buffer.data(), buffer.size()),
                 absl::StrCat("input_path ",
                              QuoteForMessage(spec.input_path(), 512))));
    if (n == 0) return upload->Commit();
    SLUICE_RETURN_IF_ERROR(upload->Append(absl::string_view(buffer.data(), n)));
  }
}

absl::StatusOr<v1::Job> JobManager::Publish(JobId id, const JobTotals& totals) {
  JobRecord job;
  {
    MutexLock lock(&commit_mu_);
    SLUICE_ASSIGN_OR_RETURN(job, store_->PublishJob(id, totals, NowMicros()));
    live_.CountUpload(-1);
    quotas_.Update(job);
    live_.Add(job);
  }
  for (const auto& [code, count] : totals.errors) {
    metrics_.CountErrors(code, count);
  }
  LogInfo(LogJob(FormatJobId(id)), " accepted, requests=", totals.lines,
          " bad_lines=", totals.failed);
  if (live_.GoesBefore(id)) NotifyOrder();
  if (const Listener l = listener(); l.on_work) l.on_work();
  return live_.Describe(job);
}

void JobManager::Abandon(JobId job) {
  live_.CountUpload(-1);
  quotas_.Forget(job);
  const absl::Status status = store_->MarkDeleted(job);
  if (!status.ok()) {
    MutexLock lock(&mu_);
    abandoned_.insert(job);
  }
  writer_->Wake();
}

// -- Handing out.

int32_t JobManager::VocabSize() const {
  const RequestParser::Options& model = options_.requests;
  return model.model ? model.model->spec().vocab_size
                     : model.tokenizer->vocab_size();
}

bool JobManager::Fits(const Request& request) const {
  const auto out_of_range = [vocab_size = VocabSize()](int32_t id) {
    return id < 0 || id >= vocab_size;
  };
  const int32_t least = request.echo || request.pools() ? 0 : 1;
  bool fits =
      !request.prompt.empty() && request.max_tokens >= least &&
      request.sampling.logprobs <= kMaxTopLogprobs &&
      static_cast<int64_t>(request.prompt.size()) + request.max_tokens <=
          options_.requests.max_model_len &&
      std::none_of(request.prompt.begin(), request.prompt.end(), out_of_range);
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    fits = fits && !out_of_range(id);
  }
  return fits;
}

absl::StatusOr<std::vector<Request>> JobManager::Restore(
    const LiveJobs::Cursor& cursor, StoredRequest stored, Request* line) const {
  line->job = cursor.job;
  if (cursor.accepted_us > 0) {
    line->accepted = absl::FromUnixMicros(cursor.accepted_us);
  }
  line->priority = cursor.priority;
  line->index = stored.index;
  line->custom_id = std::move(stored.custom_id);
  line->prompt = std::move(stored.prompt);
  if (stored.damaged) {
    return DataLoss(
        "the stored request is damaged: the disk holds other bytes than were "
        "written; submit it again");
  }
  SLUICE_RETURN_IF_ERROR(DecodeRequestParams(stored.params, line));
  SLUICE_ASSIGN_OR_RETURN(std::vector<Request> requests, SplitLine(*line));
  // The model directory may have changed since the request was checked.
  if (!std::all_of(requests.begin(), requests.end(),
                   [this](const Request& request) { return Fits(request); })) {
    return absl::FailedPreconditionError(
        "the request does not fit the model any more: vocabulary or maximum "
        "length changed since it was accepted; submit it again");
  }
  return requests;
}

absl::StatusOr<std::vector<Request>> JobManager::TakeRequests(size_t max) {
  MutexLock take_lock(&take_mu_);
  std::vector<Request> taken;
  while (taken.size() < max) {
    writer_->WaitForRoom();
    const auto cursor = live_.NextRunnable();
    if (!cursor) break;
    std::vector<Request> returned =
        live_.TakeReturned(cursor->job, max - taken.size());
    if (!returned.empty()) {
      std::move(returned.begin(), returned.end(), std::back_inserter(taken));
      continue;
    }
    if (joiner_.HoldsBack()) {
      // Lines that have begun must end, whichever job's they are.
      returned = live_.TakeReturnedParts(max - taken.size());
      if (returned.empty()) break;
      std::move(returned.begin(), returned.end(), std::back_inserter(taken));
      continue;
    }
    const int64_t limit =
        std::min<int64_t>(static_cast<int64_t>(max - taken.size()), kTakeRows);
    auto rows = store_->ReadRequests(cursor->job, cursor->next_index, limit);
    if (!rows.ok()) {
      if (taken.empty()) return rows.status();
      break;
    }
    const bool drained = rows->empty();
    int64_t next = cursor->next_index;
    int64_t count = 0;
    // Those with known tokens were handed out before.
    const std::set<int64_t>& resumed = resumed_[cursor->job];
    std::vector<Request> read;
    std::vector<FinishedLine> unreadable;
    for (StoredRequest& row : *rows) {
      // A row may be many requests: the others wait for the next call.
      if (taken.size() + read.size() >= max) break;
      next = row.index + 1;
      if (resumed.contains(row.index)) continue;
      ++count;
      Request line;
      absl::StatusOr<std::vector<Request>> requests =
          Restore(*cursor, std::move(row), &line);
      if (requests.ok()) {
        std::move(requests->begin(), requests->end(), std::back_inserter(read));
      } else {
        FinishedRequest failed;
        failed.request = std::move(line);
        failed.generation.status = requests.status();
        unreadable.push_back({std::move(failed)});
      }
    }
    // A job that was cancelled meanwhile gives nothing more.
    if (!live_.Advance(cursor->job, next, count, drained)) continue;
    if (drained) resumed_.erase(cursor->job);
    if (cursor->next_index == 0) OnBegun();
    std::move(read.begin(), read.end(), std::back_inserter(taken));
    for (FinishedLine& line : unreadable) CompleteLine(std::move(line));
  }
  return taken;
}

// A job that begins runs by the plan that there is.
void JobManager::OnBegun() {
  {
    MutexLock lock(&mu_);
    plan_stored_ = plan_stored_ && plan_.empty();
  }
  writer_->Wake();
}

void JobManager::GiveBack(std::vector<Request> requests) {
  live_.GiveBack(std::move(requests));
}

absl::StatusOr<LengthHistogram> JobManager::PendingLengths() {
  LengthHistogram lengths;
  PromptBeginnings beginnings;
  // What a request can share of its prompt.
  const auto shared = [&](const Request& request,
                          std::span<const int32_t> prompt) {
    const bool shares =
        options_.share_prefixes && !request.pools() && !request.scores_prompt();
    return shares ? beginnings.Add(prompt) : 0;
  };
  SLUICE_ASSIGN_OR_RETURN(const std::vector<JobRecord> jobs,
                          store_->UnfinishedJobs());
  for (const JobRecord& job : jobs) {
    if (job.state != v1::JOB_STATE_IN_PROGRESS || job.paused) continue;
    LengthHistogram read;
    int64_t lines = 0;
    for (int64_t from = 0; read.requests() < kMaxCountedRequests;) {
      SLUICE_ASSIGN_OR_RETURN(const std::vector<StoredRequest> rows,
                              store_->ReadRequests(job.id, from, kTakeRows));
      for (const StoredRequest& row : rows) {
        Request request;
        // An unreadable request ends with an error when it is taken.
        if (!DecodeRequestParams(row.params, &request).ok()) continue;
        ++lines;
        if (request.parts.empty()) {
          request.parts = {
              {static_cast<int32_t>(row.prompt.size()), request.max_tokens}};
        }
        // Those that come before what is damaged count.
        ForEachPart(
            request.parts, row.prompt,
            [&](const RequestPart& part, absl::Span<const int32_t> prompt) {
              read.Add(static_cast<int32_t>(prompt.size()), part.max_tokens, 1,
                       shared(request, prompt));
            })
            .IgnoreError();
      }
      if (rows.empty()) break;
      from = rows.back().index + 1;
    }
    if (read.requests() == 0) continue;
    // The lines read stand for all of them.
    lengths.Add(read, std::max<int64_t>(1, job.pending() / lines));
  }
  return lengths;
}

// -- Recording.

void JobManager::ReportPlan(const std::string& plan) {
  {
    MutexLock lock(&mu_);
    plan_ = plan;
    plan_stored_ = false;
  }
  writer_->Wake();
}

void JobManager::ReportModel(const ModelContent& model) {
  {
    MutexLock lock(&mu_);
    model_ = model;
  }
  writer_->Wake();
}

absl::Status JobManager::StoreReports() {
  std::optional<ModelContent> model;
  std::optional<std::string> plan;
  {
    MutexLock lock(&mu_);
    model = model_;
    if (!std::exchange(plan_stored_, true)) plan = plan_;
  }
  if (plan) {
    absl::StatusOr<std::vector<JobRecord>> jobs =
        store_->SetPlan(*plan, live_.Begun());
    if (!jobs.ok()) {
      LogWarning("the plan could not be stored: ", jobs.status().ToString());
    } else {
      for (const JobRecord& job : *jobs) live_.Update(job);
    }
  }
  if (!model) return absl::OkStatus();
  const absl::Status written =
      WriteModelRecord(options_.state_dir / kModelRecord, *model);
  if (!written.ok()) {
    return Annotate(written,
                    "which weights jobs began with could not be stored");
  }
  MutexLock lock(&mu_);
  if (model_ == model) model_.reset();
  return absl::OkStatus();
}

ModelContent JobManager::ReportedModel() const {
  absl::StatusOr<ModelContent> model =
      ReadModelRecord(options_.state_dir / kModelRecord);
  if (model.ok()) return *std::move(model);
  if (!absl::IsNotFound(model.status())) {
    LogWarning(model.status().message(),
               "; which weights jobs began with is not known");
  }
  return {};
}

void JobManager::Complete(Request request, Generation generation) {
  const JobId job = request.job;
  std::optional<FinishedLine> line =
      joiner_.Add({std::move(request), std::move(generation)});
  if (line) {
    CompleteLine(*std::move(line));
  } else if (!live_.IsLive(job)) {
    joiner_.Forget(job);  // the job ended before this did
  }
  LetGo();
}

void JobManager::LetGo() {
  if (!joiner_.LetsGo()) return;
  if (const Listener l = listener(); l.on_work) l.on_work();
}

void JobManager::CompleteLine(FinishedLine line) {
  live_.CountQueued(line.front().request.job, 1);
  writer_->Push(std::move(line));
}

StoredResult JobManager::Format(FinishedLine finished) {
  for (FinishedRequest& part : finished) {
    Generation& generation = part.generation;
    if (!generation.decode) continue;
    generation.text = DecodeAfter(*options_.requests.tokenizer,
                                  part.request.prompt, generation.tokens,
                                  /*skip_special_tokens=*/true);
  }
  StoredResult result = FormatResult(
      finished, options_.requests.served_model, options_.clock->Now(),
      options_.max_result_bytes, &token_texts_, options_.prompt_details);
  result.replays = live_.TakeReplays(result.job);
  return result;
}

absl::Status JobManager::Record(absl::Span<const StoredResult> results) {
  JobStore::Commit commit;
  {
    MutexLock lock(&commit_mu_);
    SLUICE_RETURN_IF_ERROR(StoreReports());
    SLUICE_ASSIGN_OR_RETURN(commit,
                            store_->CommitResults(results, NowMicros()));
    // Results are counted first: they are counted when the job is seen to end.
    for (size_t i = 0; i < results.size(); ++i) {
      if (commit.recorded[i]) metrics_.CountResult(results[i]);
    }
    for (const JobRecord& job : commit.jobs) {
      quotas_.Update(job);  // its room is free when the job is seen to end
      live_.Update(job);
    }
  }
  for (const JobRecord& job : commit.jobs) {
    if (!IsTerminal(job.state)) continue;
    joiner_.Forget(job.id);
    LetGo();
    LogInfo(LogJob(FormatJobId(job.id)), " ", JobStateName(job.state),
            ", answers=", job.completed, " errors=", job.failed);
  }
  return absl::OkStatus();
}

absl::Status JobManager::Commit(absl::Span<const StoredResult> results) {
  const absl::Status status = Record(results);
  if (!status.ok()) {
    const std::string detail =
        absl::StrCat("results cannot be stored: ", status.message());
    if (live_.SetStoreDetail(detail)) {
      LogError(detail, "; will be tried again");
    }
    return status;
  }
  if (live_.SetStoreDetail("")) LogInfo("results are stored again");
  for (const StoredResult& result : results) live_.CountQueued(result.job, -1);
  return absl::OkStatus();
}

void JobManager::OnWritten() {
  if (const Listener l = listener(); l.on_stored) l.on_stored();
}

void JobManager::ReportProgress(JobId job, const JobProgress& progress) {
  live_.AddProgress(job, progress);
}

void JobManager::ReportDetail(const std::string& detail) {
  live_.SetDetail(detail);
}

// -- Cancelling and deleting.

absl::StatusOr<v1::Job> JobManager::CancelJob(const std::string& id) {
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
    {
      MutexLock lock(&mu_);
      cancelling_.insert(job_id);
    }
    writer_->Wake();
    if (const Listener l = listener(); l.on_cancel) l.on_cancel(job_id);
  }
  return live_.Describe(job);
}

absl::StatusOr<v1::Job> JobManager::ChangeJob(
    const std::string& id,
    absl::FunctionRef<absl::StatusOr<JobRecord>(JobId)> change) {
  SLUICE_ASSIGN_OR_RETURN(const JobId job_id, ParseJobId(id));
  MutexLock lock(&commit_mu_);
  SLUICE_ASSIGN_OR_RETURN(JobRecord job, store_->GetJob(job_id));
  if (job.state != v1::JOB_STATE_IN_PROGRESS) {
    return FailedPrecondition(
        id, " is ", JobStateName(job.state),
        "; only a job in progress can be paused, resumed or moved");
  }
  SLUICE_ASSIGN_OR_RETURN(job, change(job_id));
  live_.Update(job);
  return live_.Describe(job);
}

void JobManager::NotifyOrder() {
  const Listener l = listener();
  if (l.on_order) l.on_order();
}

absl::StatusOr<v1::Job> JobManager::PauseJob(const std::string& id) {
  SLUICE_ASSIGN_OR_RETURN(v1::Job job, ChangeJob(id, [&](JobId job) {
                            return store_->SetPaused(job, true);
                          }));
  NotifyOrder();
  LogInfo(LogJob(id), " paused");
  return job;
}

absl::StatusOr<v1::Job> JobManager::ResumeJob(const std::string& id) {
  SLUICE_ASSIGN_OR_RETURN(v1::Job job, ChangeJob(id, [&](JobId job) {
                            return store_->SetPaused(job, false);
                          }));
  NotifyOrder();
  if (const Listener l = listener(); l.on_work) l.on_work();
  LogInfo(LogJob(id), " resumed");
  return job;
}

absl::StatusOr<v1::Job> JobManager::SetJobPriority(const std::string& id,
                                                   int32_t priority) {
  SLUICE_ASSIGN_OR_RETURN(v1::Job job, ChangeJob(id, [&](JobId job) {
                            return store_->SetPriority(job, priority);
                          }));
  NotifyOrder();
  LogInfo(LogJob(id), " priority=", priority);
  return job;
}

absl::Status JobManager::DeleteJob(const std::string& id) {
  SLUICE_ASSIGN_OR_RETURN(const JobId job_id, ParseJobId(id));
  {
    MutexLock lock(&commit_mu_);
    SLUICE_ASSIGN_OR_RETURN(const JobRecord job, store_->GetJob(job_id));
    if (!IsTerminal(job.state)) {
      return FailedPrecondition(
          id, " is ", JobStateName(job.state),
          "; cancel it and wait for its end before deleting it");
    }
    SLUICE_RETURN_IF_ERROR(store_->MarkDeleted(job_id));
    live_.CountEnded(job.state, -1);
    live_.NotifyDeleted(job_id);
  }
  writer_->Wake();
  return absl::OkStatus();
}

absl::StatusOr<bool> JobManager::DoBackgroundWork() {
  {
    MutexLock lock(&commit_mu_);
    const absl::Status stored = StoreReports();
    if (!stored.ok())
      LogWarning(stored.message());  // results are not stored, either
  }
  absl::Status kept;
  {
    MutexLock lock(&commit_mu_);
    kept = StoreTokens();
  }
  SLUICE_RETURN_IF_ERROR(RemoveAbandoned());
  const absl::StatusOr<bool> cancelled = CancelSome();
  if (cancelled.ok() && *cancelled) return true;
  // On a full disk, purging makes room for cancelling.
  SLUICE_ASSIGN_OR_RETURN(const bool purged, store_->PurgeSome(kPurgeRows));
  if (purged) return true;
  SLUICE_RETURN_IF_ERROR(kept);
  return cancelled;
}

absl::Status JobManager::RemoveAbandoned() {
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

absl::StatusOr<bool> JobManager::CancelSome() {
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
    FinishedRequest request;
    request.request.job = job;
    request.request.index = row.index;
    request.request.custom_id = row.custom_id;
    request.generation.status = cancelled;
    results.push_back(Format({std::move(request)}));
  }
  if (!results.empty()) SLUICE_RETURN_IF_ERROR(Record(results));
  if (rows.empty()) {
    MutexLock lock(&mu_);
    cancelling_.erase(job);
  }
  return true;
}

}  // namespace sluice
