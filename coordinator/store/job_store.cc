// The store is one SQLite file, in WAL mode with synchronous=FULL: a commit is
// on disk when it returns. It has two connections, each behind its mutex: one
// writes, one reads, and in WAL mode neither waits for the other.
//
//   jobs      one row each; counters change in the transactions that they count
//   requests  those without a result: what is pending is what is here
//   results   (job, idx) is unique, and a row only comes in when its request
//             goes out (or was never one: a bad line)
//   progress  known tokens of requests without a result; see ProgressLog
//
//   accepted  how many jobs ever were published
//
// Prompts are int32 token ids, little-endian. A deleted job keeps state 100
// until its rows are purged.

#include "coordinator/store/job_store.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/host/logging.h"
#include "common/host/write_file.h"
#include "common/status_macros.h"
#include "common/threads/clock.h"
#include "coordinator/store/row_sum.h"
#include "coordinator/store/sqlite_schema.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little);

// Deleting a job takes a few pages; freeing its rows, some hundred.
constexpr int64_t kReserveBytes = 4 << 20;
// The maximum bytes of requests that are read at once.
constexpr size_t kMaxReadBytes = 8 << 20;
// The maximum rows of a transaction that has only the reserve's room.
constexpr int64_t kFewRows = 64;

#define SLUICE_JOB_COLUMNS                                               \
  "id, model, spec, state, created_us, started_us, finished_us, total, " \
  "completed, failed, cancelled, prompt_tokens, generation_tokens, "     \
  "replays, plan, wanted_prompt_tokens, wanted_max_tokens, "             \
  "answered_max_tokens, by_default, cut_by_default, content, tenant, "   \
  "paused, priority, cached_tokens, input_bytes"

// The condition for jobs that are published and not deleted.
#define SLUICE_VISIBLE "state BETWEEN 2 AND 99"
static_assert(v1::JOB_STATE_VALIDATING == 1 && v1::JOB_STATE_IN_PROGRESS == 2);

absl::Status NoJob(JobId job) { return NotFound("no job job_", job.value()); }

// A request_id belongs to its tenant, whose name has no control characters.
std::string RequestKey(const std::string& tenant,
                       const std::string& request_id) {
  return tenant.empty() ? request_id : absl::StrCat(tenant, "\x1f", request_id);
}

// Rows of earlier versions have no checksum: null, which reads as 0.
bool IsDamaged(int64_t stored, int64_t computed) {
  return stored != 0 && stored != computed;
}

absl::StatusOr<JobRecord> ReadJob(const SqliteStatement& row) {
  JobRecord job;
  job.id = JobId(row.Int(0));
  job.model = std::string(row.Bytes(1));
  const absl::string_view spec = row.Bytes(2);
  if (!job.spec.ParseFromArray(spec.data(), static_cast<int>(spec.size()))) {
    return DataLoss("the stored spec of job_", job.id.value(), " is damaged");
  }
  job.state = static_cast<v1::JobState>(row.Int(3));
  job.created_us = row.Int(4);
  job.started_us = row.Int(5);
  job.finished_us = row.Int(6);
  job.total = row.Int(7);
  job.completed = row.Int(8);
  job.failed = row.Int(9);
  job.cancelled = row.Int(10);
  job.prompt_tokens = row.Int(11);
  job.generation_tokens = row.Int(12);
  job.replays = row.Int(13);
  job.plan = std::string(row.Bytes(14));
  job.wanted_prompt_tokens = row.Int(15);
  job.wanted_max_tokens = row.Int(16);
  job.answered_max_tokens = row.Int(17);
  job.by_default = row.Int(18);
  job.cut_by_default = row.Int(19);
  job.content = std::string(row.Bytes(20));
  job.tenant = std::string(row.Bytes(21));
  job.paused = row.Int(22) != 0;
  job.priority = row.Int(23);
  job.cached_tokens = row.Int(24);
  job.input_bytes = row.Int(25);
  return job;
}

// Reads a job from the first row of a statement.
absl::StatusOr<JobRecord> ReadOneJob(SqliteStatement& statement,
                                     const absl::Status& if_none) {
  SqliteReset reset(&statement);
  SLUICE_ASSIGN_OR_RETURN(const bool found, statement.Step());
  if (!found) return if_none;
  return ReadJob(statement);
}

absl::StatusOr<std::vector<JobRecord>> ReadJobs(SqliteStatement& statement) {
  SqliteReset reset(&statement);
  std::vector<JobRecord> jobs;
  while (true) {
    SLUICE_ASSIGN_OR_RETURN(const bool row, statement.Step());
    if (!row) return jobs;
    SLUICE_ASSIGN_OR_RETURN(JobRecord job, ReadJob(statement));
    jobs.push_back(std::move(job));
  }
}

// Reads a row of idx, is_error, line, sum.
StoredLine ReadLine(JobId job, const SqliteStatement& row) {
  const absl::string_view line = row.Bytes(2);
  StoredLine result;
  result.index = row.Int(0);
  result.is_error = row.Int(1) != 0;
  result.line = std::string(line);
  result.damaged = IsDamaged(
      row.Int(3),
      RowSum(job, result.index, {result.is_error ? "error" : "answer", line}));
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(
    const std::filesystem::path& path, Histogram* commit_seconds) {
  std::unique_ptr<JobStore> store(new JobStore(path, commit_seconds));
  SLUICE_RETURN_IF_ERROR(store->Initialize());
  return store;
}

JobStore::JobStore(const std::filesystem::path& path, Histogram* commit_seconds)
    : path_(path),
      commit_seconds_(commit_seconds),
      accepted_jobs_(path_),
      reserve_(path_.parent_path() / "reserve", kReserveBytes) {}

absl::Status JobStore::OpenWriter() {
  std::error_code error;
  const auto size = std::filesystem::file_size(path_, error);
  // SQLite would delete the log of a database that is empty.
  if (error || size == 0) {
    SLUICE_RETURN_IF_ERROR(accepted_jobs_.Check(0));
  }
  SLUICE_ASSIGN_OR_RETURN(writer_, SqliteDb::Open(path_.string()));
  SLUICE_RETURN_IF_ERROR(writer_->Exec(
      "PRAGMA synchronous=FULL; PRAGMA cache_size=-16384;"
      // FAST overwrites deleted rows only where that costs no extra write.
      "PRAGMA secure_delete=FAST; PRAGMA journal_size_limit=67108864;"
      "PRAGMA trusted_schema=OFF;"));
  SLUICE_ASSIGN_OR_RETURN(accepted_, CountAcceptedJobs(writer_.get()));
  const absl::Status all_there = accepted_jobs_.Check(accepted_);
  if (!all_there.ok()) writer_->KeepLog();
  return all_there;
}

void JobStore::WriteAccepted() {
  // A failure is only logged, as the jobs are on disk anyway.
  const absl::Status written = accepted_jobs_.Write(accepted_);
  if (!written.ok()) LogWarning(std::string(written.message()));
}

absl::Status JobStore::Initialize() {
  MutexLock write_lock(&write_mu_);
  MutexLock read_lock(&read_mu_);
  SLUICE_RETURN_IF_ERROR(OpenWriter());
  SLUICE_RETURN_IF_ERROR(PrepareSqliteSchema(writer_.get(), path_.string()));
  SLUICE_ASSIGN_OR_RETURN(reader_, SqliteDb::Open(path_.string()));
  SLUICE_RETURN_IF_ERROR(
      reader_->Exec("PRAGMA cache_size=-8192; PRAGMA query_only=ON;"
                    "PRAGMA trusted_schema=OFF;"));
  SLUICE_RETURN_IF_ERROR(PrepareWriter());
  SLUICE_RETURN_IF_ERROR(PrepareReader());
  SLUICE_ASSIGN_OR_RETURN(progress_, ProgressLog::Create(writer_.get()));
  WriteAccepted();
  reserve_.Fill();
  // The directory is synced, so that the file's name survives, too.
  return SyncDirectory(path_.parent_path());
}

namespace {

struct StatementText {
  SqliteStatement* statement;
  const char* sql;
};

absl::Status Prepare(SqliteDb& db, absl::Span<const StatementText> texts) {
  for (const StatementText& text : texts) {
    SLUICE_ASSIGN_OR_RETURN(*text.statement, db.Prepare(text.sql));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status JobStore::PrepareWriter() {
  static_assert(v1::JOB_STATE_COMPLETED == 4 && v1::JOB_STATE_CANCELLING == 6 &&
                v1::JOB_STATE_CANCELLED == 7);
  const StatementText texts[] = {
      {&write_.create_job,
       "INSERT INTO jobs(request_id, model, spec, state, created_us, tenant, "
       "priority) VALUES(?1, ?2, ?3, 1, ?4, ?5, ?6)"},
      {&write_.publish_job,
       "UPDATE jobs SET total = ?2, failed = ?3, started_us = ?4,"
       " wanted_prompt_tokens = ?5, wanted_max_tokens = ?6, by_default = ?7,"
       " state = CASE WHEN ?2 = ?3 THEN 4 ELSE 2 END,"
       " finished_us = CASE WHEN ?2 = ?3 THEN ?4 ELSE 0 END,"
       " content = ?8, input_bytes = ?9 "
       "WHERE id = ?1 AND state = 1"},
      {&write_.count_accepted, "UPDATE accepted SET jobs = jobs + 1"},
      {&write_.job, "SELECT " SLUICE_JOB_COLUMNS
                    " FROM jobs WHERE id = ?1 AND " SLUICE_VISIBLE},
      {&write_.cancel_job,
       "UPDATE jobs SET state = 6 WHERE id = ?1 AND state = 2"},
      {&write_.set_paused,
       "UPDATE jobs SET paused = ?2 WHERE id = ?1 AND state = 2"},
      {&write_.set_priority,
       "UPDATE jobs SET priority = ?2 WHERE id = ?1 AND state = 2"},
      {&write_.delete_job,
       "UPDATE jobs SET state = 100, request_id = NULL "
       "WHERE id = ?1 AND state != 100"},
      {&write_.delete_unpublished,
       "UPDATE jobs SET state = 100, request_id = NULL WHERE state = 1"},
      {&write_.find_deleted, "SELECT id FROM jobs WHERE state = 100 LIMIT 1"},
      {&write_.forget_job, "DELETE FROM jobs WHERE id = ?1"},
      {&write_.set_plan,
       "UPDATE jobs SET plan = ?1 WHERE state = 2 AND "
       "id IN (SELECT value FROM json_each(?2))"},
      {&write_.running_jobs,
       "SELECT " SLUICE_JOB_COLUMNS " FROM jobs WHERE state = 2 ORDER BY id"},
      {&write_.add_request,
       "INSERT INTO requests(job, idx, custom_id, prompt, params, sum) "
       "VALUES(?1, ?2, ?3, ?4, ?5, ?6)"},
      {&write_.remove_request,
       "DELETE FROM requests WHERE job = ?1 AND idx = ?2"},
      {&write_.add_result,
       "INSERT INTO results(job, idx, is_error, line, sum) "
       "VALUES(?1, ?2, ?3, ?4, ?5)"},
      {&write_.count_results,
       "UPDATE jobs SET completed = completed + ?2, failed = failed + ?3,"
       " cancelled = cancelled + ?4, prompt_tokens = prompt_tokens + ?5,"
       " generation_tokens = generation_tokens + ?6, replays = replays + ?7,"
       " wanted_prompt_tokens = wanted_prompt_tokens - ?9,"
       " wanted_max_tokens = wanted_max_tokens - ?10,"
       " answered_max_tokens = answered_max_tokens + ?11,"
       " cut_by_default = cut_by_default + ?12,"
       " cached_tokens = cached_tokens + ?13,"
       " finished_us = CASE WHEN completed + failed + ?2 + ?3 = total"
       "  AND state IN (2, 6) THEN ?8 ELSE finished_us END,"
       " state = CASE WHEN completed + failed + ?2 + ?3 = total THEN"
       "  CASE state WHEN 2 THEN 4 WHEN 6 THEN 7 ELSE state END"
       "  ELSE state END "
       "WHERE id = ?1"},
      {&write_.purge_requests,
       "DELETE FROM requests WHERE job = ?1 AND idx IN (SELECT idx FROM "
       "requests WHERE job = ?1 LIMIT ?2)"},
      {&write_.purge_results,
       "DELETE FROM results WHERE job = ?1 AND idx IN (SELECT idx FROM "
       "results WHERE job = ?1 LIMIT ?2)"},
  };
  return Prepare(*writer_, texts);
}

absl::Status JobStore::PrepareReader() {
  const StatementText texts[] = {
      {&read_.job, "SELECT " SLUICE_JOB_COLUMNS
                   " FROM jobs WHERE id = ?1 AND " SLUICE_VISIBLE},
      {&read_.job_by_request_id,
       "SELECT " SLUICE_JOB_COLUMNS
       " FROM jobs WHERE request_id = ?1 AND " SLUICE_VISIBLE},
      {&read_.list_jobs,
       "SELECT " SLUICE_JOB_COLUMNS " FROM jobs WHERE id < ?1 "
       "AND " SLUICE_VISIBLE " ORDER BY id DESC LIMIT ?2"},
      {&read_.list_tenants_jobs,
       "SELECT " SLUICE_JOB_COLUMNS " FROM jobs WHERE id < ?1 "
       "AND tenant = ?3 AND " SLUICE_VISIBLE " ORDER BY id DESC LIMIT ?2"},
      {&read_.unfinished_jobs,
       "SELECT " SLUICE_JOB_COLUMNS
       " FROM jobs WHERE state IN (2, 3, 6) ORDER BY id"},
      {&read_.count_jobs, "SELECT count(*) FROM jobs WHERE state = ?1"},
      {&read_.requests,
       "SELECT idx, custom_id, prompt, params, sum FROM requests "
       "WHERE job = ?1 AND idx >= ?2 ORDER BY idx LIMIT ?3"},
      {&read_.results,
       "SELECT idx, is_error, line, sum FROM results "
       "WHERE job = ?1 AND idx >= ?2 ORDER BY idx"},
      {&read_.errors,
       "SELECT idx, is_error, line, sum FROM results INDEXED BY failed_results "
       "WHERE job = ?1 AND idx >= ?2 AND is_error = 1 ORDER BY idx LIMIT ?3"},
  };
  return Prepare(*reader_, texts);
}

absl::Status JobStore::CommitTimed(SqliteTransaction& transaction) {
  const double start = MonotonicSeconds();
  SLUICE_RETURN_IF_ERROR(transaction.Commit());
  if (commit_seconds_) commit_seconds_->Observe(MonotonicSeconds() - start);
  return absl::OkStatus();
}

absl::Status JobStore::RunAlone(SqliteStatement& statement) {
  SqliteReset reset(&statement);
  SqliteTransaction transaction(writer_.get());
  SLUICE_RETURN_IF_ERROR(transaction.Begin());
  SLUICE_RETURN_IF_ERROR(statement.Run());
  return CommitTimed(transaction);
}

absl::Status JobStore::CreateJob(JobRecord* job) {
  const std::string spec = job->spec.SerializeAsString();
  const std::string key = RequestKey(job->tenant, job->spec.request_id());
  job->priority = job->spec.priority();
  MutexLock lock(&write_mu_);
  SqliteStatement& create = write_.create_job;
  create.BindText(2, job->model).BindBlob(3, spec).Bind(4, job->created_us);
  create.BindText(5, job->tenant).Bind(6, job->priority);
  if (job->spec.request_id().empty()) {
    create.BindNull(1);
  } else {
    create.BindText(1, key);
  }
  SLUICE_RETURN_IF_ERROR(RunAlone(create));
  job->id = JobId(writer_->last_insert_rowid());
  job->state = v1::JOB_STATE_VALIDATING;
  return absl::OkStatus();
}

absl::Status JobStore::InsertResult(const StoredResult& result) {
  SqliteStatement& add = write_.add_result;
  SqliteReset reset(&add);
  const bool is_error = result.kind != ResultKind::kAnswer;
  return add.Bind(1, result.job.value())
      .Bind(2, result.index)
      .Bind(3, is_error)
      .BindBlob(4, result.line)
      .Bind(5, RowSum(result.job, result.index,
                      {is_error ? "error" : "answer", result.line}))
      .Run();
}

absl::Status JobStore::AddRows(JobId job,
                               absl::Span<const StoredRequest> requests,
                               absl::Span<const StoredResult> results) {
  MutexLock lock(&write_mu_);
  SqliteTransaction transaction(writer_.get());
  SLUICE_RETURN_IF_ERROR(transaction.Begin());
  SqliteStatement& add = write_.add_request;
  for (const StoredRequest& request : requests) {
    SqliteReset reset(&add);
    const absl::string_view prompt(
        reinterpret_cast<const char*>(request.prompt.data()),
        request.prompt.size() * 4);
    SLUICE_RETURN_IF_ERROR(
        add.Bind(1, job.value())
            .Bind(2, request.index)
            .BindText(3, request.custom_id)
            .BindBlob(4, prompt)
            .BindText(5, request.params)
            .Bind(6, RowSum(job, request.index,
                            {request.custom_id, prompt, request.params}))
            .Run());
  }
  for (const StoredResult& result : results) {
    SLUICE_RETURN_IF_ERROR(InsertResult(result));
  }
  return CommitTimed(transaction);
}

absl::StatusOr<JobRecord> JobStore::PublishJob(JobId job,
                                               const JobTotals& totals,
                                               int64_t now_us) {
  MutexLock lock(&write_mu_);
  SqliteTransaction transaction(writer_.get());
  SLUICE_RETURN_IF_ERROR(transaction.Begin());
  SqliteReset reset(&write_.publish_job);
  SLUICE_RETURN_IF_ERROR(write_.publish_job.Bind(1, job.value())
                             .Bind(2, totals.lines)
                             .Bind(3, totals.failed)
                             .Bind(4, now_us)
                             .Bind(5, totals.prompt_tokens)
                             .Bind(6, totals.max_tokens)
                             .Bind(7, totals.by_default)
                             .BindBlob(8, totals.content)
                             .Bind(9, totals.bytes)
                             .Run());
  if (writer_->changes() != 1) return NoJob(job);
  SLUICE_RETURN_IF_ERROR(write_.count_accepted.Run());
  SLUICE_RETURN_IF_ERROR(CommitTimed(transaction));
  ++accepted_;
  WriteAccepted();
  reserve_.Fill();
  write_.job.Bind(1, job.value());
  return ReadOneJob(write_.job, NoJob(job));
}

absl::StatusOr<JobRecord> JobStore::GetJob(JobId job) {
  MutexLock lock(&read_mu_);
  read_.job.Bind(1, job.value());
  return ReadOneJob(read_.job, NoJob(job));
}

absl::StatusOr<JobRecord> JobStore::FindByRequestId(
    const std::string& tenant, const std::string& request_id) {
  const std::string key = RequestKey(tenant, request_id);
  MutexLock lock(&read_mu_);
  read_.job_by_request_id.BindText(1, key);
  return ReadOneJob(read_.job_by_request_id,
                    absl::NotFoundError("no job with this request_id"));
}

absl::StatusOr<std::vector<JobRecord>> JobStore::ListJobs(
    JobId before, int limit, const std::optional<std::string>& tenant) {
  MutexLock lock(&read_mu_);
  SqliteStatement& list = tenant ? read_.list_tenants_jobs : read_.list_jobs;
  list.Bind(1, before.value()).Bind(2, limit);
  if (tenant) list.BindText(3, *tenant);
  return ReadJobs(list);
}

absl::StatusOr<std::vector<JobRecord>> JobStore::UnfinishedJobs() {
  MutexLock lock(&read_mu_);
  return ReadJobs(read_.unfinished_jobs);
}

absl::StatusOr<int64_t> JobStore::CountJobs(v1::JobState state) {
  MutexLock lock(&read_mu_);
  SqliteReset reset(&read_.count_jobs);
  SLUICE_ASSIGN_OR_RETURN(const bool row,
                          read_.count_jobs.Bind(1, state).Step());
  return row ? read_.count_jobs.Int(0) : 0;
}

absl::StatusOr<JobRecord> JobStore::ChangeJob(JobId job,
                                              SqliteStatement& statement,
                                              std::optional<int64_t> value) {
  SLUICE_RETURN_IF_ERROR(
      ChangeOnAnyDisk([&](bool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
        statement.Bind(1, job.value());
        if (value) statement.Bind(2, *value);
        return RunAlone(statement);
      }));
  write_.job.Bind(1, job.value());
  return ReadOneJob(write_.job, NoJob(job));
}

absl::StatusOr<JobRecord> JobStore::BeginCancel(JobId job) {
  MutexLock lock(&write_mu_);
  return ChangeJob(job, write_.cancel_job);
}

absl::StatusOr<JobRecord> JobStore::SetPaused(JobId job, bool paused) {
  MutexLock lock(&write_mu_);
  return ChangeJob(job, write_.set_paused, paused);
}

absl::StatusOr<JobRecord> JobStore::SetPriority(JobId job, int64_t priority) {
  MutexLock lock(&write_mu_);
  return ChangeJob(job, write_.set_priority, priority);
}

absl::StatusOr<std::vector<JobRecord>> JobStore::SetPlan(
    absl::string_view plan, const std::set<JobId>& jobs) {
  const std::string ids =
      absl::StrCat("[",
                   absl::StrJoin(jobs, ",",
                                 [](std::string* out, JobId job) {
                                   absl::StrAppend(out, job.value());
                                 }),
                   "]");
  MutexLock lock(&write_mu_);
  write_.set_plan.BindText(1, plan);
  write_.set_plan.BindText(2, ids);
  SLUICE_RETURN_IF_ERROR(RunAlone(write_.set_plan));
  return ReadJobs(write_.running_jobs);
}

absl::Status JobStore::MarkDeleted(JobId job) {
  MutexLock lock(&write_mu_);
  int64_t changes = 0;
  SLUICE_RETURN_IF_ERROR(
      ChangeOnAnyDisk([&](bool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
        write_.delete_job.Bind(1, job.value());
        SLUICE_RETURN_IF_ERROR(RunAlone(write_.delete_job));
        changes = writer_->changes();
        return absl::OkStatus();
      }));
  return changes == 1 ? absl::OkStatus() : NoJob(job);
}

absl::Status JobStore::MarkUnpublishedDeleted() {
  MutexLock lock(&write_mu_);
  return ChangeOnAnyDisk([&](bool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
    return RunAlone(write_.delete_unpublished);
  });
}

absl::Status JobStore::ChangeOnAnyDisk(
    const std::function<absl::Status(bool little_room)>& change) {
  absl::Status status = change(false);
  if (!absl::IsResourceExhausted(status)) return status;
  // The lock keeps other writers from taking the room.
  reserve_.Release();
  writer_->EmptyLog();
  status = change(true);
  writer_->EmptyLog();
  reserve_.Fill();
  return status;
}

absl::StatusOr<bool> JobStore::PurgeSome(int64_t rows) {
  MutexLock lock(&write_mu_);
  bool more = false;
  SLUICE_RETURN_IF_ERROR(ChangeOnAnyDisk(
      [&](bool little_room)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) -> absl::Status {
            SLUICE_ASSIGN_OR_RETURN(
                more, PurgeRows(little_room ? std::min(rows, kFewRows) : rows,
                                little_room));
            return absl::OkStatus();
          }));
  if (more) {
    purged_ = true;
  } else if (std::exchange(purged_, false)) {
    // The log takes room until it is merged into the database.
    writer_->EmptyLog();
    reserve_.Fill();
  }
  return more;
}

absl::StatusOr<bool> JobStore::PurgeRows(int64_t rows, bool little_room) {
  int64_t job = 0;
  {
    SqliteReset reset(&write_.find_deleted);
    SLUICE_ASSIGN_OR_RETURN(const bool found, write_.find_deleted.Step());
    if (!found) return false;
    job = write_.find_deleted.Int(0);
  }
  SqliteTransaction transaction(writer_.get());
  SLUICE_RETURN_IF_ERROR(transaction.Begin());
  for (SqliteStatement* purge :
       {&write_.purge_requests, &write_.purge_results}) {
    SqliteReset reset(purge);
    SLUICE_RETURN_IF_ERROR(purge->Bind(1, job).Bind(2, rows).Run());
    rows -= writer_->changes();
    if (rows <= 0) break;
  }
  if (rows > 0) {
    SqliteReset reset(&write_.forget_job);
    SLUICE_RETURN_IF_ERROR(write_.forget_job.Bind(1, job).Run());
  }
  SLUICE_RETURN_IF_ERROR(CommitTimed(transaction));
  // Gives free pages back to the file system, some at a time.
  const absl::Status given =
      writer_->Exec(little_room ? "PRAGMA incremental_vacuum(256)"
                                : "PRAGMA incremental_vacuum(4096)");
  // Without room for that, later rows still use the pages.
  if (!given.ok() && !absl::IsResourceExhausted(given)) return given;
  return true;
}

absl::StatusOr<std::vector<StoredRequest>> JobStore::ReadRequests(
    JobId job, int64_t from, int64_t limit) {
  MutexLock lock(&read_mu_);
  SqliteStatement& read = read_.requests;
  SqliteReset reset(&read);
  read.Bind(1, job.value()).Bind(2, from).Bind(3, limit);
  std::vector<StoredRequest> requests;
  size_t bytes = 0;
  while (bytes < kMaxReadBytes) {
    SLUICE_ASSIGN_OR_RETURN(const bool row, read.Step());
    if (!row) break;
    StoredRequest& request = requests.emplace_back();
    request.index = read.Int(0);
    request.custom_id = std::string(read.Bytes(1));
    const absl::string_view prompt = read.Bytes(2);
    request.prompt.resize(prompt.size() / 4);
    std::memcpy(request.prompt.data(), prompt.data(),
                request.prompt.size() * 4);
    request.params = std::string(read.Bytes(3));
    request.damaged = IsDamaged(
        read.Int(4), RowSum(job, request.index,
                            {request.custom_id, prompt, request.params}));
    bytes += prompt.size() + request.custom_id.size() + request.params.size();
  }
  return requests;
}

absl::StatusOr<JobStore::Commit> JobStore::CommitResults(
    absl::Span<const StoredResult> results, int64_t now_us) {
  MutexLock lock(&write_mu_);
  const bool cancels = std::all_of(
      results.begin(), results.end(), [](const StoredResult& result) {
        return result.kind == ResultKind::kCancelled;
      });
  if (!cancels) return CommitRows(results, now_us);
  // Cancelling frees room, as requests are larger than their results.
  Commit commit;
  SLUICE_RETURN_IF_ERROR(ChangeOnAnyDisk(
      [&](bool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) -> absl::Status {
        SLUICE_ASSIGN_OR_RETURN(commit, CommitRows(results, now_us));
        return absl::OkStatus();
      }));
  return commit;
}

absl::StatusOr<JobStore::Commit> JobStore::CommitRows(
    absl::Span<const StoredResult> results, int64_t now_us) {
  struct Delta {
    int64_t completed = 0, failed = 0, cancelled = 0;
    int64_t prompt_tokens = 0, generation_tokens = 0, replays = 0;
    int64_t failed_prompt_tokens = 0, failed_max_tokens = 0;
    int64_t answered_max_tokens = 0, cut_by_default = 0;
    int64_t cached_tokens = 0;
  };
  std::map<JobId, Delta> deltas;
  Commit commit;
  commit.recorded.reserve(results.size());

  SqliteTransaction transaction(writer_.get());
  SLUICE_RETURN_IF_ERROR(transaction.Begin());
  for (const StoredResult& result : results) {
    Delta& delta = deltas[result.job];
    delta.replays += result.replays;
    SqliteReset reset(&write_.remove_request);
    SLUICE_RETURN_IF_ERROR(write_.remove_request.Bind(1, result.job.value())
                               .Bind(2, result.index)
                               .Run());
    const bool pending = writer_->changes() == 1;
    commit.recorded.push_back(pending);
    if (!pending) continue;
    SLUICE_RETURN_IF_ERROR(InsertResult(result));
    delta.generation_tokens += result.generation_tokens;
    delta.cut_by_default += result.cut_by_default;
    if (result.kind == ResultKind::kAnswer) {
      ++delta.completed;
      delta.prompt_tokens += result.prompt_tokens;
      delta.answered_max_tokens += result.max_tokens;
      delta.cached_tokens += result.cached_tokens;
    } else {
      ++delta.failed;
      delta.cancelled += result.kind == ResultKind::kCancelled;
      delta.failed_prompt_tokens += result.prompt_tokens;
      delta.failed_max_tokens += result.max_tokens;
    }
  }
  for (const auto& [job, delta] : deltas) {
    SqliteReset reset(&write_.count_results);
    SLUICE_RETURN_IF_ERROR(write_.count_results.Bind(1, job.value())
                               .Bind(2, delta.completed)
                               .Bind(3, delta.failed)
                               .Bind(4, delta.cancelled)
                               .Bind(5, delta.prompt_tokens)
                               .Bind(6, delta.generation_tokens)
                               .Bind(7, delta.replays)
                               .Bind(8, now_us)
                               .Bind(9, delta.failed_prompt_tokens)
                               .Bind(10, delta.failed_max_tokens)
                               .Bind(11, delta.answered_max_tokens)
                               .Bind(12, delta.cut_by_default)
                               .Bind(13, delta.cached_tokens)
                               .Run());
    write_.job.Bind(1, job.value());
    auto record = ReadOneJob(write_.job, NoJob(job));
    if (record.ok()) {
      if (record->pending() == 0) {
        SLUICE_RETURN_IF_ERROR(progress_->Forget(job));
      }
      commit.jobs.push_back(*std::move(record));
    } else if (!absl::IsNotFound(record.status())) {
      return record.status();
    }
  }
  SLUICE_RETURN_IF_ERROR(CommitTimed(transaction));
  return commit;
}

absl::Status JobStore::AddProgress(absl::string_view key,
                                   absl::Span<const StoredProgress> progress) {
  MutexLock lock(&write_mu_);
  SqliteTransaction transaction(writer_.get());
  SLUICE_RETURN_IF_ERROR(transaction.Begin());
  SLUICE_RETURN_IF_ERROR(progress_->Append(key, progress));
  return CommitTimed(transaction);
}

absl::StatusOr<ReadProgress> JobStore::TakeProgress(JobId job,
                                                    absl::string_view key) {
  MutexLock lock(&write_mu_);
  SLUICE_ASSIGN_OR_RETURN(ReadProgress read, progress_->Read(job, key));
  if (read.foreign > 0) {
    SLUICE_RETURN_IF_ERROR(
        ChangeOnAnyDisk([&](bool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
          return progress_->RemoveForeign(job, key);
        }));
  }
  return read;
}

absl::StatusOr<std::vector<StoredLine>> JobStore::ReadResults(
    JobId job, int64_t offset, int64_t max_bytes) {
  MutexLock lock(&read_mu_);
  SqliteStatement& read = read_.results;
  SqliteReset reset(&read);
  read.Bind(1, job.value()).Bind(2, offset);
  std::vector<StoredLine> results;
  int64_t bytes = 0;
  for (int64_t next = offset;; ++next) {
    SLUICE_ASSIGN_OR_RETURN(const bool row, read.Step());
    if (!row || read.Int(0) != next) return results;
    bytes += static_cast<int64_t>(read.Bytes(2).size());
    if (!results.empty() && bytes > max_bytes) return results;
    results.push_back(ReadLine(job, read));
  }
}

absl::StatusOr<std::vector<StoredLine>> JobStore::ReadErrors(JobId job,
                                                             int64_t from,
                                                             int64_t limit) {
  MutexLock lock(&read_mu_);
  SqliteStatement& read = read_.errors;
  SqliteReset reset(&read);
  read.Bind(1, job.value()).Bind(2, from).Bind(3, limit);
  std::vector<StoredLine> errors;
  size_t bytes = 0;
  while (bytes < kMaxReadBytes) {
    SLUICE_ASSIGN_OR_RETURN(const bool row, read.Step());
    if (!row) break;
    bytes += read.Bytes(2).size();
    errors.push_back(ReadLine(job, read));
  }
  return errors;
}

}  // namespace sluice
