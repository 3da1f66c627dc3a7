#include "coordinator/store/progress_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <limits>

#include "absl/time/clock.h"
#include "coordinator/store/job_store.h"
#include "coordinator/store/sqlite_db.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class ProgressTest : public testing::Test {
 protected:
  ProgressTest() { Open(); }

  void Open() {
    store_.reset();
    auto store = JobStore::Open(path());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  std::filesystem::path path() const { return dir_.path() / "sluice.db"; }

  JobId Running(int64_t count) {
    JobRecord job;
    job.model = "m";
    EXPECT_TRUE(store_->CreateJob(&job).ok());
    std::vector<StoredRequest> requests;
    for (int64_t i = 0; i < count; ++i) requests.push_back({i, "", {1}, "{}"});
    EXPECT_TRUE(store_->AddRows(job.id, requests, {}).ok());
    EXPECT_TRUE(store_->PublishJob(job.id, {.lines = count}, 10).ok());
    return job.id;
  }

  void Answer(JobId job, int64_t index) {
    StoredResult result;
    result.job = job;
    result.index = index;
    auto commit = store_->CommitResults({&result, 1}, 20);
    ASSERT_TRUE(commit.ok()) << commit.status();
  }

  absl::Status Add(JobId job, int64_t index, int32_t begin,
                   std::vector<int32_t> tokens, const std::string& key = "k") {
    const StoredProgress progress = {job, index, begin, std::move(tokens), {}};
    return store_->AddProgress(key, {&progress, 1});
  }

  ReadProgress Read(JobId job, const std::string& key = "k") {
    auto read = store_->TakeProgress(job, key);
    EXPECT_TRUE(read.ok()) << read.status();
    return *std::move(read);
  }

  // The first number that `sql` gives, of the file.
  int64_t Query(const std::string& sql) {
    auto db = SqliteDb::Open(path().string());
    return (*db)->QueryInt(sql).value();
  }

  TempDir dir_;
  std::unique_ptr<JobStore> store_;
};

TEST_F(ProgressTest, KeepsTokensOfRequestsUntilTheyHaveResults) {
  const JobId job = Running(3);
  const StoredProgress first[] = {{job, 2, 0, {7, 8}, {}},
                                  {job, 0, 0, {5}, {}}};
  ASSERT_TRUE(store_->AddProgress("k", first).ok());
  ASSERT_TRUE(Add(job, 2, 2, {9}).ok());
  Open();
  ReadProgress read = Read(job);
  ASSERT_EQ(read.requests.size(), 2u);
  EXPECT_EQ(read.requests[0].index, 0);
  EXPECT_THAT(read.requests[0].tokens, ElementsAre(5));
  EXPECT_EQ(read.requests[1].index, 2);
  EXPECT_THAT(read.requests[1].tokens, ElementsAre(7, 8, 9));
  EXPECT_THAT(read.requests[1].logprobs, IsEmpty());
  EXPECT_EQ(read.damaged + read.foreign, 0);

  Answer(job, 2);
  ASSERT_TRUE(Add(job, 2, 3, {1}).ok());  // it came late
  Open();
  EXPECT_EQ(Read(job).requests.size(), 1u);
  Answer(job, 0);
  Answer(job, 1);
  EXPECT_EQ(Query("SELECT count(*) FROM progress"), 0);
  ASSERT_TRUE(Add(job, 1, 0, {1}).ok());
  EXPECT_EQ(Query("SELECT count(*) FROM progress"), 0);
}

TEST_F(ProgressTest, RequestsOfALineAreApart) {
  const JobId job = Running(2);
  StoredProgress second = {job, 1, 0, {7, 8}, {}, 5};
  const StoredProgress first[] = {second, {job, 1, 0, {5}, {}}};
  ASSERT_TRUE(store_->AddProgress("k", first).ok());
  second.begin = 2;
  second.tokens = {9};
  ASSERT_TRUE(store_->AddProgress("k", {&second, 1}).ok());
  Open();
  const ReadProgress read = Read(job);
  ASSERT_EQ(read.requests.size(), 2u);
  EXPECT_EQ(read.requests[0].part, 0);
  EXPECT_THAT(read.requests[0].tokens, ElementsAre(5));
  EXPECT_EQ(read.requests[1].part, 5);
  EXPECT_EQ(read.requests[1].index, 1);
  EXPECT_THAT(read.requests[1].tokens, ElementsAre(7, 8, 9));
  EXPECT_EQ(read.damaged + read.foreign, 0);
}

TEST_F(ProgressTest, KeepsLogprobsBitForBit) {
  const JobId job = Running(1);
  StoredProgress progress = {job, 0, 0, {3, 4}, {}};
  const float odd[] = {-0.0f, -std::numeric_limits<float>::infinity(),
                       -1.1754942e-38f, -0.1f};
  for (int i = 0; i < 2; ++i) {
    SampledToken token;
    token.logprob = odd[i];
    if (i == 1) token.top = {{4, odd[2]}, {-1, odd[3]}};
    progress.logprobs.push_back(token);
  }
  ASSERT_TRUE(store_->AddProgress("k", {&progress, 1}).ok());
  const ReadProgress read = Read(job);
  ASSERT_EQ(read.requests.size(), 1u);
  const std::vector<SampledToken>& got = read.requests[0].logprobs;
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[1].token, 4);
  EXPECT_TRUE(std::signbit(got[0].logprob));
  EXPECT_EQ(got[1].logprob, odd[1]);
  ASSERT_EQ(got[1].top.size(), 2u);
  EXPECT_EQ(got[1].top[0].logprob, odd[2]);
  EXPECT_EQ(got[1].top[1].token, -1);
}

TEST_F(ProgressTest, TokensReplaceThoseFromTheirBeginAndNoneIsLeftOut) {
  const JobId job = Running(2);
  ASSERT_TRUE(Add(job, 0, 0, {1, 2, 3}).ok());
  ASSERT_TRUE(Add(job, 0, 1, {9}).ok());
  ASSERT_TRUE(Add(job, 0, 4, {5}).ok());  // 2 and 3 are not known
  ASSERT_TRUE(Add(job, 1, 2, {5}).ok());
  const ReadProgress read = Read(job);
  ASSERT_EQ(read.requests.size(), 1u);
  EXPECT_THAT(read.requests[0].tokens, ElementsAre(1, 9));
}

TEST_F(ProgressTest, WhatAnotherKeyWroteIsDropped) {
  const JobId job = Running(1);
  ASSERT_TRUE(Add(job, 0, 0, {1, 2}, "other").ok());
  const ReadProgress read = Read(job);
  EXPECT_EQ(read.foreign, 1);
  EXPECT_THAT(read.requests, IsEmpty());
  EXPECT_THAT(Read(job, "other").requests, IsEmpty());
}

TEST_F(ProgressTest, WhatTheDiskChangedIsDropped) {
  const JobId job = Running(2);
  ASSERT_TRUE(Add(job, 0, 0, {1}).ok());
  ASSERT_TRUE(Add(job, 0, 1, {2}).ok());
  ASSERT_TRUE(Add(job, 0, 2, {3}).ok());
  ASSERT_TRUE(Add(job, 1, 0, {4}).ok());
  store_.reset();
  {
    auto db = SqliteDb::Open(path().string());
    ASSERT_TRUE((*db)
                    ->Exec("UPDATE progress SET data = zeroblob(length(data)) "
                           "WHERE part = 2")
                    .ok());
  }
  Open();
  const ReadProgress read = Read(job);
  EXPECT_EQ(read.damaged, 1);
  ASSERT_EQ(read.requests.size(), 2u);
  EXPECT_THAT(read.requests[0].tokens, ElementsAre(1));
  EXPECT_THAT(read.requests[1].tokens, ElementsAre(4));
}

TEST_F(ProgressTest, AGrownLogIsWrittenAnewWithoutThoseThatHaveResults) {
  const JobId job = Running(4);
  const std::vector<int32_t> million(1 << 20, 5);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Add(job, i, 0, million).ok());
  const int64_t before = Query("SELECT sum(length(data)) FROM progress");
  Answer(job, 0);
  ASSERT_TRUE(Add(job, 3, 0, {1}).ok());
  ASSERT_TRUE(Add(job, 3, 1, {2}).ok());
  EXPECT_LT(Query("SELECT sum(length(data)) FROM progress"), before * 2 / 3);
  ASSERT_TRUE(Add(job, 3, 2, {3}).ok());
  Open();
  const ReadProgress read = Read(job);
  ASSERT_EQ(read.requests.size(), 2u);
  EXPECT_EQ(read.requests[0].index, 1);
  EXPECT_EQ(read.requests[0].tokens, million);
  EXPECT_THAT(read.requests[1].tokens, ElementsAre(1, 2, 3));
}

TEST_F(ProgressTest, ThousandsOfRequestsAreOneCommitOfFourBytesAToken) {
  constexpr int kRequests = 8000;
  constexpr int kTokens = 500;
  const JobId job = Running(kRequests);
  std::vector<StoredProgress> progress;
  for (int i = 0; i < kRequests; ++i) {
    progress.push_back({job, i, 0, std::vector<int32_t>(kTokens, i), {}});
  }
  const absl::Time start = absl::Now();
  ASSERT_TRUE(store_->AddProgress("k", progress).ok());
  const absl::Time stored = absl::Now();
  Open();
  const ReadProgress read = Read(job);
  std::cout << "stored in " << stored - start << ", opened and read in "
            << absl::Now() - stored << "\n";
  EXPECT_LT(Query("SELECT sum(length(data)) FROM progress"),
            kRequests * (4 * kTokens + 24));
  ASSERT_EQ(read.requests.size(), static_cast<size_t>(kRequests));
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_EQ(read.requests[i].tokens, progress[i].tokens);
  }
}

}  // namespace
}  // namespace sluice
