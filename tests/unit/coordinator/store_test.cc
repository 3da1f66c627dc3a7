#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "coordinator/store/accepted_jobs.h"
#include "coordinator/store/custom_id_set.h"
#include "coordinator/store/job_store.h"
#include "coordinator/store/space_reserve.h"
#include "coordinator/store/sqlite_db.h"
#include "coordinator/store/state_lock.h"
#include "tests/support/file_size_limit.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class StoreTest : public testing::Test {
 protected:
  StoreTest() { Open(); }

  void Open() {
    store_.reset();
    auto store = JobStore::Open(path());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  std::filesystem::path path() const { return dir_.path() / "sluice.db"; }

  JobRecord NewJob(const std::string& request_id = "") {
    JobRecord job;
    job.model = "m";
    job.spec.set_name("name");
    job.spec.set_request_id(request_id);
    job.created_us = 5;
    EXPECT_TRUE(store_->CreateJob(&job).ok());
    return job;
  }

  static std::vector<StoredRequest> Requests(int from, int to) {
    std::vector<StoredRequest> requests;
    for (int i = from; i < to; ++i) {
      requests.push_back({i, absl::StrCat("id", i), {i, -1, 1 << 30}, "{}"});
    }
    return requests;
  }

  static StoredResult Result(JobId job, int64_t index,
                             ResultKind kind = ResultKind::kAnswer) {
    StoredResult result;
    result.job = job;
    result.index = index;
    result.kind = kind;
    result.line = absl::StrCat("line ", index);
    result.prompt_tokens = 3;
    result.generation_tokens = 2;
    return result;
  }

  // Makes a running job of `count` requests.
  JobId Running(int count) {
    const JobRecord job = NewJob();
    EXPECT_TRUE(store_->AddRows(job.id, Requests(0, count), {}).ok());
    EXPECT_TRUE(store_->PublishJob(job.id, {.lines = count}, 10).ok());
    return job.id;
  }

  TempDir dir_;
  std::unique_ptr<JobStore> store_;
};

TEST_F(StoreTest, AJobFromUploadToItsEnd) {
  const JobRecord job = NewJob();
  EXPECT_TRUE(absl::IsNotFound(store_->GetJob(job.id).status()));
  StoredResult bad = Result(job.id, 1, ResultKind::kError);
  ASSERT_TRUE(store_->AddRows(job.id, Requests(0, 1), {&bad, 1}).ok());
  ASSERT_TRUE(store_->AddRows(job.id, Requests(2, 4), {}).ok());
  auto published = store_->PublishJob(job.id, {.lines = 4, .failed = 1}, 10);
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_EQ(published->state, v1::JOB_STATE_IN_PROGRESS);
  EXPECT_EQ(published->pending(), 3);
  EXPECT_EQ(published->spec.name(), "name");
  EXPECT_EQ(published->created_us, 5);
  EXPECT_EQ(published->started_us, 10);
  EXPECT_EQ(published->finished_us, 0);

  auto requests = store_->ReadRequests(job.id, 0, 2);
  ASSERT_TRUE(requests.ok());
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_EQ((*requests)[1].index, 2);
  EXPECT_EQ((*requests)[1].custom_id, "id2");
  EXPECT_THAT((*requests)[1].prompt, testing::ElementsAre(2, -1, 1 << 30));

  const std::vector<StoredResult> two = {Result(job.id, 0),
                                         Result(job.id, 3, ResultKind::kError)};
  auto commit = store_->CommitResults(two, 20);
  ASSERT_TRUE(commit.ok()) << commit.status();
  EXPECT_THAT(commit->recorded, testing::ElementsAre(true, true));
  ASSERT_EQ(commit->jobs.size(), 1u);
  EXPECT_EQ(commit->jobs[0].state, v1::JOB_STATE_IN_PROGRESS);
  // Results are read up to the first one missing, which is 2.
  EXPECT_EQ(store_->ReadResults(job.id, 0, 1 << 20)->size(), 2u);

  StoredResult last = Result(job.id, 2);
  last.replays = 6;
  commit = store_->CommitResults({&last, 1}, 30);
  ASSERT_TRUE(commit.ok());
  const JobRecord& end = commit->jobs[0];
  EXPECT_EQ(end.state, v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(end.finished_us, 30);
  EXPECT_EQ(end.completed, 2);
  EXPECT_EQ(end.failed, 2);
  EXPECT_EQ(end.replays, 6);
  EXPECT_EQ(end.generation_tokens, 6);
  auto results = store_->ReadResults(job.id, 1, 1 << 20);
  ASSERT_EQ(results->size(), 3u);
  EXPECT_TRUE((*results)[0].is_error);
  EXPECT_EQ((*results)[1].line, "line 2");
  EXPECT_TRUE(store_->UnfinishedJobs()->empty());
}

TEST_F(StoreTest, ARequestHasOneResult) {
  const JobId job = Running(2);
  std::vector<StoredResult> twice = {Result(job, 0), Result(job, 0)};
  twice[1].line = "other";
  auto commit = store_->CommitResults(twice, 20);
  ASSERT_TRUE(commit.ok()) << commit.status();
  EXPECT_THAT(commit->recorded, testing::ElementsAre(true, false));
  commit = store_->CommitResults(twice, 21);
  ASSERT_TRUE(commit.ok());
  EXPECT_THAT(commit->recorded, testing::ElementsAre(false, false));
  EXPECT_EQ(commit->jobs[0].completed, 1);
  EXPECT_EQ((*store_->ReadResults(job, 0, 100))[0].line, "line 0");
  // A request that never existed has no result, either.
  const StoredResult unknown = Result(job, 99);
  const StoredResult no_job = Result(JobId(99), 0);
  EXPECT_THAT(store_->CommitResults({&unknown, 1}, 22)->recorded,
              testing::ElementsAre(false));
  EXPECT_THAT(store_->CommitResults({&no_job, 1}, 22)->recorded,
              testing::ElementsAre(false));
}

TEST_F(StoreTest, ReadsResultsInBoundedPieces) {
  const JobId job = Running(10);
  std::vector<StoredResult> all;
  for (int i = 0; i < 10; ++i) all.push_back(Result(job, i));
  ASSERT_TRUE(store_->CommitResults(all, 20).ok());
  EXPECT_EQ(store_->ReadResults(job, 0, 18)->size(), 3u);  // 6 bytes each
  EXPECT_EQ(store_->ReadResults(job, 0, 0)->size(), 1u);
  EXPECT_EQ(store_->ReadResults(job, 9, 100)->size(), 1u);
  EXPECT_TRUE(store_->ReadResults(job, 10, 100)->empty());
}

TEST_F(StoreTest, RequestIdsAreUniqueAndFreedByDeletion) {
  const JobRecord job = NewJob("r");
  JobRecord again;
  again.spec.set_request_id("r");
  EXPECT_TRUE(absl::IsAlreadyExists(store_->CreateJob(&again)));
  EXPECT_TRUE(absl::IsNotFound(store_->FindByRequestId("", "r").status()));
  ASSERT_TRUE(store_->PublishJob(job.id, {}, 1).ok());
  EXPECT_EQ(store_->FindByRequestId("", "r")->id, job.id);
  ASSERT_TRUE(store_->MarkDeleted(job.id).ok());
  EXPECT_TRUE(absl::IsNotFound(store_->MarkDeleted(job.id)));
  EXPECT_TRUE(store_->CreateJob(&again).ok());
  EXPECT_GT(again.id, job.id);  // ids are not used again
}

TEST_F(StoreTest, PurgesInPiecesAndKeepsTheOthers) {
  const JobId kept = Running(3);
  const JobId gone = Running(10);
  std::vector<StoredResult> some;
  for (int i = 0; i < 5; ++i) some.push_back(Result(gone, i));
  ASSERT_TRUE(store_->CommitResults(some, 20).ok());
  ASSERT_TRUE(store_->MarkDeleted(gone).ok());
  EXPECT_TRUE(absl::IsNotFound(store_->GetJob(gone).status()));
  int rounds = 0;
  while (*store_->PurgeSome(4)) ++rounds;
  EXPECT_GE(rounds, 3);
  EXPECT_TRUE(store_->ReadRequests(gone, 0, 100)->empty());
  EXPECT_TRUE(store_->ReadResults(gone, 0, 1000)->empty());
  EXPECT_EQ(store_->ReadRequests(kept, 0, 100)->size(), 3u);
}

TEST_F(StoreTest, SurvivesReopening) {
  const JobId job = Running(3);
  const StoredResult result = Result(job, 1);
  ASSERT_TRUE(store_->CommitResults({&result, 1}, 20).ok());
  const JobRecord upload = NewJob("broken off");
  ASSERT_TRUE(store_->AddRows(upload.id, Requests(0, 5), {}).ok());
  Open();
  EXPECT_EQ(store_->GetJob(job)->completed, 1);
  EXPECT_EQ(store_->ReadRequests(job, 0, 10)->size(), 2u);
  EXPECT_EQ(store_->UnfinishedJobs()->size(), 1u);
  ASSERT_TRUE(store_->MarkUnpublishedDeleted().ok());
  while (*store_->PurgeSome(100)) {
  }
  EXPECT_TRUE(store_->ReadRequests(upload.id, 0, 10)->empty());
  EXPECT_EQ(store_->ReadRequests(job, 0, 10)->size(), 2u);
}

TEST_F(StoreTest, CancellingEndsWhenAllHaveResults) {
  const JobId job = Running(2);
  EXPECT_EQ(store_->BeginCancel(job)->state, v1::JOB_STATE_CANCELLING);
  EXPECT_EQ(store_->BeginCancel(job)->state, v1::JOB_STATE_CANCELLING);
  const std::vector<StoredResult> results = {
      Result(job, 0), Result(job, 1, ResultKind::kCancelled)};
  auto commit = store_->CommitResults(results, 20);
  EXPECT_EQ(commit->jobs[0].state, v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(commit->jobs[0].cancelled, 1);
  EXPECT_EQ(commit->jobs[0].failed, 1);
  EXPECT_EQ(store_->BeginCancel(job)->state, v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(absl::IsNotFound(store_->BeginCancel(JobId(99)).status()));
}

TEST_F(StoreTest, ListsNewestFirst) {
  const JobId a = Running(1), b = Running(1), c = Running(1);
  NewJob();  // not published
  ASSERT_TRUE(store_->MarkDeleted(b).ok());
  auto jobs = store_->ListJobs(JobId(std::numeric_limits<int64_t>::max()), 10);
  ASSERT_EQ(jobs->size(), 2u);
  EXPECT_EQ((*jobs)[0].id, c);
  EXPECT_EQ((*jobs)[1].id, a);
  EXPECT_EQ(store_->ListJobs(c, 10)->size(), 1u);
  EXPECT_EQ(store_->CountJobs(v1::JOB_STATE_IN_PROGRESS).value(), 2);
}

// -- Foreign files.

TEST_F(StoreTest, AFileThatIsNoDatabase) {
  store_.reset();
  std::ofstream(path(), std::ios::trunc) << std::string(8192, 'x');
  const absl::Status status = JobStore::Open(path()).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path().string()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("restore it"));
}

TEST_F(StoreTest, ADamagedDatabase) {
  Running(2000);
  store_.reset();
  // Everything is overwritten but the first page, which still looks right.
  const auto size = std::filesystem::file_size(path());
  std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096);
  file << std::string(size - 4096, '\x5a');
  file.close();
  auto store = JobStore::Open(path());
  absl::Status status = store.status();
  if (store.ok()) status = (*store)->UnfinishedJobs().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST_F(StoreTest, ATruncatedDatabase) {
  Running(2000);
  store_.reset();
  std::filesystem::resize_file(path(), 4096);
  auto store = JobStore::Open(path());
  absl::Status status = store.status();
  if (store.ok()) status = (*store)->UnfinishedJobs().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST_F(StoreTest, AnotherProgramsDatabase) {
  store_.reset();
  std::filesystem::remove(path());
  auto db = SqliteDb::Open(path().string());
  ASSERT_TRUE((*db)->Exec("CREATE TABLE songs(title)").ok());
  db->reset();
  const absl::Status status = JobStore::Open(path()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another program"));
}

TEST_F(StoreTest, ANewerVersion) {
  store_.reset();
  auto db = SqliteDb::Open(path().string());
  ASSERT_TRUE((*db)->Exec("PRAGMA user_version=99").ok());
  db->reset();
  const absl::Status status = JobStore::Open(path()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 99"));
}

TEST_F(StoreTest, AFileOfVersionOneIsBroughtUpToDate) {
  JobRecord job;
  job.model = "m";
  job.spec.set_priority(-3);
  ASSERT_TRUE(store_->CreateJob(&job).ok());
  ASSERT_TRUE(store_->AddRows(job.id, {{0, "", {1, 2}, "{}"}}, {}).ok());
  ASSERT_TRUE(store_->PublishJob(job.id, {.lines = 1}, 7).ok());
  store_.reset();
  auto db = SqliteDb::Open(path().string());
  // The file is made as in version 1.
  ASSERT_TRUE((*db)
                  ->Exec("ALTER TABLE jobs DROP COLUMN plan;"
                         "ALTER TABLE jobs DROP COLUMN wanted_prompt_tokens;"
                         "ALTER TABLE jobs DROP COLUMN wanted_max_tokens;"
                         "ALTER TABLE jobs DROP COLUMN answered_max_tokens;"
                         "ALTER TABLE jobs DROP COLUMN by_default;"
                         "ALTER TABLE jobs DROP COLUMN cut_by_default;"
                         "ALTER TABLE jobs DROP COLUMN content;"
                         "ALTER TABLE jobs DROP COLUMN tenant;"
                         "ALTER TABLE jobs DROP COLUMN paused;"
                         "ALTER TABLE jobs DROP COLUMN priority;"
                         "ALTER TABLE jobs DROP COLUMN cached_tokens;"
                         "ALTER TABLE jobs DROP COLUMN input_bytes;"
                         "ALTER TABLE requests DROP COLUMN sum;"
                         "ALTER TABLE results DROP COLUMN sum;"
                         "DROP TABLE progress;"
                         "DROP TABLE accepted;"
                         "DROP INDEX failed_results;"
                         "PRAGMA user_version=1")
                  .ok());
  db->reset();
  std::filesystem::remove(dir_.path() / "sluice.accepted");
  auto store = JobStore::Open(path());
  ASSERT_TRUE(store.ok()) << store.status();
  const auto found = (*store)->GetJob(job.id);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->total, 1);
  EXPECT_EQ(found->plan, "");
  EXPECT_EQ(found->content, "");
  EXPECT_EQ(found->tenant, "");
  EXPECT_FALSE(found->paused);
  EXPECT_EQ(found->priority, -3);
  EXPECT_EQ(found->input_bytes, 0);
  const auto requests = (*store)->ReadRequests(job.id, 0, 10);
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_FALSE((*requests)[0].damaged);
  const StoredProgress progress = {job.id, 0, 0, {4}, {}};
  ASSERT_TRUE((*store)->AddProgress("", {&progress, 1}).ok());
  EXPECT_EQ((*store)->TakeProgress(job.id, "")->requests.size(), 1u);
}

TEST_F(StoreTest, TenantsHaveRequestIdsAndListsOfTheirOwn) {
  JobRecord ours, theirs;
  for (JobRecord* job : {&ours, &theirs}) {
    job->spec.set_request_id("r");
    job->tenant = job == &ours ? "" : "lab";
    ASSERT_TRUE(store_->CreateJob(job).ok());
    ASSERT_TRUE(store_->PublishJob(job->id, {}, 7).ok());
  }
  EXPECT_EQ(store_->FindByRequestId("", "r")->id, ours.id);
  EXPECT_EQ(store_->FindByRequestId("lab", "r")->id, theirs.id);
  EXPECT_TRUE(absl::IsNotFound(store_->FindByRequestId("x", "r").status()));
  const JobId last(1000);
  EXPECT_EQ(store_->ListJobs(last, 9)->size(), 2u);
  ASSERT_EQ(store_->ListJobs(last, 9, "lab")->size(), 1u);
  EXPECT_EQ((*store_->ListJobs(last, 9, "lab"))[0].id, theirs.id);
  EXPECT_EQ(store_->ListJobs(last, 9, "x")->size(), 0u);
}

TEST_F(StoreTest, OnlyJobsInProgressArePausedAndMoved) {
  JobRecord job;
  ASSERT_TRUE(store_->CreateJob(&job).ok());
  ASSERT_TRUE(store_->AddRows(job.id, {{0, "", {1}, "{}"}}, {}).ok());
  ASSERT_TRUE(store_->PublishJob(job.id, {.lines = 1}, 7).ok());
  EXPECT_TRUE(store_->SetPaused(job.id, true)->paused);
  EXPECT_EQ(store_->SetPriority(job.id, 5)->priority, 5);
  EXPECT_TRUE(store_->GetJob(job.id)->paused);
  EXPECT_EQ(store_->GetJob(job.id)->priority, 5);
  ASSERT_TRUE(store_->BeginCancel(job.id).ok());
  EXPECT_TRUE(store_->SetPaused(job.id, false)->paused);
  EXPECT_TRUE(absl::IsNotFound(store_->SetPaused(JobId(99), true).status()));
}

TEST_F(StoreTest, RowsThatTheDiskChangedAreSaidToBeDamaged) {
  JobRecord job;
  ASSERT_TRUE(store_->CreateJob(&job).ok());
  const StoredResult bad = {.job = job.id,
                            .index = 2,
                            .kind = ResultKind::kError,
                            .line = "a bad line"};
  ASSERT_TRUE(store_
                  ->AddRows(job.id,
                            {{0, "a", {1, 2}, "{}"}, {1, "b", {3}, "{}"}},
                            {bad})
                  .ok());
  ASSERT_TRUE(store_->PublishJob(job.id, {.lines = 3, .failed = 1}, 7).ok());
  store_.reset();
  {
    auto db = SqliteDb::Open(path().string());
    ASSERT_TRUE((*db)
                    ->Exec("UPDATE requests SET prompt = x'02000000' "
                           "WHERE idx = 1;"
                           "UPDATE results SET line = 'a bed line'")
                    .ok());
  }
  store_ = *JobStore::Open(path());
  const auto requests = store_->ReadRequests(job.id, 0, 10);
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_FALSE((*requests)[0].damaged);
  EXPECT_TRUE((*requests)[1].damaged);
  const auto results = store_->ReadResults(job.id, 2, 1000);
  ASSERT_EQ(results->size(), 1u);
  EXPECT_TRUE((*results)[0].damaged);
}

class LostJobsTest : public StoreTest {
 protected:
  // Opens a copy of the present files, all but `lost`.
  absl::Status OpenCopyWithout(const std::string& lost) {
    const std::filesystem::path copy = dir_.path() / "copy";
    std::filesystem::remove_all(copy);
    std::filesystem::create_directories(copy);
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with("-shm") || !entry.is_regular_file()) continue;
      std::filesystem::copy_file(entry.path(), copy / name);
    }
    if (!lost.empty()) std::filesystem::remove(copy / lost);
    return JobStore::Open(copy / "sluice.db").status();
  }
};

TEST_F(LostJobsTest, AreSaidWhenTheLogOrTheDatabaseIsGone) {
  Running(2);
  Running(2);
  EXPECT_TRUE(OpenCopyWithout("").ok());
  for (const char* lost : {"sluice.db-wal", "sluice.db"}) {
    const absl::Status status = OpenCopyWithout(lost);
    EXPECT_TRUE(absl::IsDataLoss(status)) << lost << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("says that 2"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("knows of 0"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("sluice.db-wal"));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("delete sluice.accepted"));
  }
  // A log without its database is left for others to look at.
  EXPECT_TRUE(std::filesystem::exists(dir_.path() / "copy" / "sluice.db-wal"));
  // This is the remedy in the message.
  EXPECT_TRUE(
      std::filesystem::remove(dir_.path() / "copy" / "sluice.accepted"));
  EXPECT_TRUE(JobStore::Open(dir_.path() / "copy" / "sluice.db").ok());
}

TEST_F(LostJobsTest, AreSaidWhenTheLogIsDamaged) {
  Running(2);
  const std::filesystem::path log = dir_.path() / "sluice.db-wal";
  const auto whole = std::filesystem::file_size(log);
  Running(2);
  const std::filesystem::path copy = dir_.path() / "copy";
  ASSERT_TRUE(OpenCopyWithout("").ok());
  // The file is cut, then filled with garbage.
  for (const bool cut : {true, false}) {
    std::filesystem::remove_all(copy);
    std::filesystem::create_directories(copy);
    for (const char* name : {"sluice.db", "sluice.db-wal", "sluice.accepted"}) {
      std::filesystem::copy_file(dir_.path() / name, copy / name);
    }
    if (cut) {
      std::filesystem::resize_file(copy / "sluice.db-wal", whole);
    } else {
      std::fstream file(copy / "sluice.db-wal",
                        std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(whole) + 100);
      file << std::string(5000, '?');
    }
    const absl::Status status = JobStore::Open(copy / "sluice.db").status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("knows of 1"));
    // The log was not touched.
    EXPECT_GE(std::filesystem::file_size(copy / "sluice.db-wal"), whole);
  }
}

TEST(AcceptedJobsTest, IsReadBackUnlessItIsTorn) {
  TempDir dir;
  const AcceptedJobs jobs(dir.path() / "sluice.db");
  EXPECT_EQ(jobs.Read(), std::nullopt);
  EXPECT_TRUE(jobs.Check(0).ok());
  for (const int64_t count : {0L, 12L, 7L, 1L << 60}) {
    EXPECT_TRUE(jobs.Write(count).ok());
    EXPECT_EQ(jobs.Read(), count);
  }
  std::ofstream(dir.path() / "sluice.accepted") << "accepted jobs: 12 -1";
  EXPECT_EQ(jobs.Read(), std::nullopt);
}

TEST(SpaceReserveTest, HoldsRoomUntilItIsReleased) {
  TempDir dir;
  SpaceReserve reserve(dir.path() / "reserve", 1 << 20);
  EXPECT_EQ(reserve.held_bytes(), 0);
  reserve.Fill();
  EXPECT_EQ(reserve.held_bytes(), 1 << 20);
  reserve.Fill();
  EXPECT_EQ(reserve.held_bytes(), 1 << 20);
  reserve.Release();
  EXPECT_EQ(reserve.held_bytes(), 0);
  // Another process finds this one's reserve.
  reserve.Fill();
  EXPECT_EQ(SpaceReserve(dir.path() / "reserve", 1 << 20).held_bytes(),
            1 << 20);
}

TEST_F(StoreTest, APlanIsRecordedWithJobsInProgress) {
  JobRecord ended;
  JobRecord runs;
  ASSERT_TRUE(store_->CreateJob(&ended).ok());
  ASSERT_TRUE(store_->PublishJob(ended.id, {.lines = 1, .failed = 1}, 7).ok());
  ASSERT_TRUE(store_->CreateJob(&runs).ok());
  ASSERT_TRUE(store_->AddRows(runs.id, {{0, "", {1, 2}, "{}"}}, {}).ok());
  ASSERT_TRUE(store_->PublishJob(runs.id, {.lines = 1}, 7).ok());
  JobRecord waits;
  ASSERT_TRUE(store_->CreateJob(&waits).ok());
  ASSERT_TRUE(store_->AddRows(waits.id, {{0, "", {1, 2}, "{}"}}, {}).ok());
  ASSERT_TRUE(store_->PublishJob(waits.id, {.lines = 1}, 7).ok());
  const auto changed = store_->SetPlan(R"({"version":1})", {ended.id, runs.id});
  ASSERT_TRUE(changed.ok()) << changed.status();
  ASSERT_EQ(changed->size(), 2u);
  EXPECT_EQ((*changed)[0].id, runs.id);
  EXPECT_EQ(store_->GetJob(runs.id)->plan, R"({"version":1})");
  EXPECT_EQ(store_->GetJob(ended.id)->plan, "");
  EXPECT_EQ(store_->GetJob(waits.id)->plan, "");
  EXPECT_TRUE(store_->SetPlan(R"({"version":2})", {}).ok());
  EXPECT_EQ(store_->GetJob(runs.id)->plan, R"({"version":1})");
}

TEST_F(StoreTest, ADirectoryInItsPlace) {
  const absl::Status status = JobStore::Open(dir_.path()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

// -- A full disk, as the process sees one: files may not grow any more.

TEST_F(StoreTest, AFullDiskLosesNothing) {
  const JobId job = Running(100);
  const JobRecord upload = NewJob();
  const StoredResult first = Result(job, 0);
  ASSERT_TRUE(store_->CommitResults({&first, 1}, 20).ok());
  StoredResult big = Result(job, 1);
  big.line = std::string(1 << 20, 'x');
  {
    const FileSizeLimit limit(
        std::filesystem::file_size(path().string() + "-wal") + 8192);
    const absl::Status status = store_->CommitResults({&big, 1}, 21).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no space left"));
    const absl::Status rows =
        store_->AddRows(upload.id, Requests(0, 10'000), {});
    EXPECT_TRUE(absl::IsResourceExhausted(rows)) << rows;
    EXPECT_EQ(store_->GetJob(job)->completed, 1);
  }
  EXPECT_EQ(store_->ReadRequests(job, 0, 1000)->size(), 99u);
  auto commit = store_->CommitResults({&big, 1}, 22);
  ASSERT_TRUE(commit.ok()) << commit.status();
  EXPECT_THAT(commit->recorded, testing::ElementsAre(true));
  Open();
  EXPECT_EQ(store_->GetJob(job)->completed, 2);
  EXPECT_EQ((*store_->ReadResults(job, 1, 1))[0].line, big.line);
}

// -- Other programs on the disk.

TEST(CustomIdSetTest, TellsTheFirstLine) {
  const TempDir dir;
  auto set = CustomIdSet::Create(dir.path());
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  EXPECT_EQ((*set)->Insert("a", 1).value(), 0);
  EXPECT_EQ((*set)->Insert("b", 2).value(), 0);
  EXPECT_EQ((*set)->Insert("a", 3).value(), 1);
  EXPECT_EQ((*set)->Insert("A", 4).value(), 0);
  EXPECT_EQ((*set)->Insert("b", 5).value(), 2);
}

TEST(CustomIdSetTest, NeedsItsDirectory) {
  const TempDir dir;
  EXPECT_TRUE(absl::IsFailedPrecondition(
      CustomIdSet::Create(dir.path() / "none").status()));
}

TEST(StateLockTest, HoldsOnce) {
  const TempDir dir;
  auto lock = StateLock::Acquire(dir.path() / "state");
  ASSERT_TRUE(lock.ok()) << lock.status();
  const absl::Status second = StateLock::Acquire(dir.path() / "state").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_THAT(std::string(second.message()),
              HasSubstr(absl::StrCat("(process ", getpid(), ")")));
  lock->reset();
  EXPECT_TRUE(StateLock::Acquire(dir.path() / "state").ok());
}

TEST(StateLockTest, NeedsADirectory) {
  const TempDir dir;
  std::ofstream(dir.path() / "file") << "x";
  EXPECT_TRUE(absl::IsFailedPrecondition(
      StateLock::Acquire(dir.path() / "file" / "state").status()));
  // Nor is a path made where there is none.
  EXPECT_TRUE(absl::IsInvalidArgument(
      StateLock::Acquire(dir.path() / "none" / "state").status()));
}

}  // namespace
}  // namespace sluice
