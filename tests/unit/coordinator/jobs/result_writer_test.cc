#include "coordinator/jobs/results/result_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace sluice {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Le;

// A store that the test blocks and lets fail.
class ResultWriterTest : public testing::Test, public ResultSink {
 protected:
  ResultWriterTest() {
    options_.first_retry = absl::Milliseconds(1);
    options_.last_retry = absl::Milliseconds(2);
  }

  // The writer's thread calls this object.
  void TearDown() override { writer_.reset(); }

  StoredResult Format(FinishedLine finished) override {
    StoredResult result;
    result.index = finished.front().request.index;
    return result;
  }

  absl::Status Commit(absl::Span<const StoredResult> results) override {
    MutexLock lock(&mu_);
    ++attempts_;
    changed_.NotifyAll();
    while (held_) changed_.Wait(&mu_);
    if (!status_.ok()) return status_;
    batches_.push_back(results.size());
    for (const StoredResult& result : results) {
      committed_.push_back(result.index);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> DoBackgroundWork() override {
    MutexLock lock(&mu_);
    ++background_calls_;
    changed_.NotifyAll();
    if (background_failures_ > 0) {
      --background_failures_;
      return absl::UnavailableError("busy");
    }
    return --background_left_ > 0;
  }

  void OnWritten() override {
    MutexLock lock(&mu_);
    written_.push_back(told_->backlog().results);
  }

  void Start() {
    MutexLock lock(&mu_);
    writer_ = std::make_unique<ResultWriter>(options_, this);
    told_ = writer_.get();
  }

  void Push(int64_t index, size_t text_bytes = 0) {
    FinishedRequest finished;
    finished.request.index = index;
    finished.generation.text = std::string(text_bytes, 'x');
    writer_->Push({std::move(finished)});
  }

  void Hold(bool held) {
    MutexLock lock(&mu_);
    held_ = held;
    changed_.NotifyAll();
  }

  void SetStatus(absl::Status status) {
    MutexLock lock(&mu_);
    status_ = std::move(status);
  }

  void WaitForAttempts(int attempts) {
    MutexLock lock(&mu_);
    while (attempts_ < attempts) changed_.Wait(&mu_);
  }

  void WaitForBackground(int calls) {
    MutexLock lock(&mu_);
    while (background_calls_ < calls) changed_.Wait(&mu_);
  }

  std::vector<size_t> batches() {
    MutexLock lock(&mu_);
    return batches_;
  }

  std::vector<int64_t> committed() {
    MutexLock lock(&mu_);
    return committed_;
  }

  ResultWriter::Options options_;
  Mutex mu_;
  CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  int attempts_ ABSL_GUARDED_BY(mu_) = 0;
  int background_calls_ ABSL_GUARDED_BY(mu_) = 0;
  int background_left_ ABSL_GUARDED_BY(mu_) = 0;
  int background_failures_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<size_t> batches_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> committed_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> written_ ABSL_GUARDED_BY(mu_);
  // The writer for its own thread, also while it is destroyed.
  ResultWriter* told_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::unique_ptr<ResultWriter> writer_;
};

TEST_F(ResultWriterTest, WhatWaitsGoesTogether) {
  Start();
  Hold(true);
  Push(0);
  WaitForAttempts(1);
  for (int i = 1; i <= 5; ++i) Push(i);
  Hold(false);
  writer_->Flush();
  EXPECT_THAT(batches(), ElementsAre(1, 5));
  EXPECT_THAT(committed(), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(ResultWriterTest, BatchesAreBoundedInNumberAndBytes) {
  options_.max_batch = 4;
  options_.max_batch_bytes = 50'000;
  Start();
  Hold(true);
  Push(0);
  WaitForAttempts(1);
  for (int i = 1; i <= 9; ++i) Push(i);
  for (int i = 10; i <= 13; ++i) Push(i, 30'000);
  Hold(false);
  writer_->Flush();
  EXPECT_THAT(batches(), ElementsAre(1, 4, 4, 3, 2));
  EXPECT_EQ(committed().size(), 14u);
}

TEST_F(ResultWriterTest, TheBacklogIsWhatIsNotStored) {
  Start();
  EXPECT_EQ(writer_->backlog().results, 0);
  EXPECT_EQ(writer_->backlog().bytes, 0);
  Hold(true);
  Push(0, 10'000);
  WaitForAttempts(1);
  Push(1);
  EXPECT_EQ(writer_->backlog().results, 2);
  EXPECT_GT(writer_->backlog().bytes, 10'000);
  EXPECT_LT(writer_->backlog().bytes, 20'000);
  Hold(false);
  writer_->Stop();
  EXPECT_EQ(writer_->backlog().results, 0);
  EXPECT_EQ(writer_->backlog().bytes, 0);
  // Waiters are told when the backlog has become smaller.
  MutexLock lock(&mu_);
  EXPECT_THAT(written_, ElementsAre(1, 0));
}

TEST_F(ResultWriterTest, RoomIsWaitedForWhenTheWriterIsFarBehind) {
  options_.max_waiting = 2;
  Start();
  Hold(true);
  Push(0);
  WaitForAttempts(1);
  std::atomic<int> pushed = 0;
  {
    Thread pusher("pusher", [&] {
      for (int i = 1; i <= 10; ++i) {
        writer_->WaitForRoom();
        Push(i);
        ++pushed;
      }
    });
    // Whenever this runs, no more than two fit before the store goes on.
    EXPECT_LE(pushed, 2);
    Hold(false);
  }
  writer_->Flush();
  EXPECT_EQ(committed().size(), 11u);
  EXPECT_THAT(batches(), Each(Le(2u)));
}

TEST_F(ResultWriterTest, NobodyWhoEndsWaitsForADeadStore) {
  options_.max_waiting = 2;
  Start();
  SetStatus(absl::ResourceExhaustedError("full"));
  Push(0);
  WaitForAttempts(1);
  Thread pusher("pusher", [&] {
    for (int i = 1; i <= 10; ++i) {
      writer_->WaitForRoom();
      Push(i);
    }
  });
  writer_->StopWaiting();
  pusher.Join();
  SetStatus(absl::OkStatus());
  writer_->Stop();
  EXPECT_EQ(committed().size(), 11u);
}

TEST_F(ResultWriterTest, BackgroundWorkIsRetriedWhileResultsKeepComing) {
  {
    MutexLock lock(&mu_);
    background_failures_ = 1;
  }
  Start();
  std::atomic<bool> end = false;
  Thread pusher("pusher", [&] {
    for (int i = 0; !end; ++i) {
      writer_->WaitForRoom();
      Push(i);
    }
  });
  WaitForBackground(2);
  end = true;
}

TEST_F(ResultWriterTest, FailuresAreRetriedAndNothingIsLost) {
  Start();
  SetStatus(absl::ResourceExhaustedError("full"));
  Push(0);
  Push(1);
  WaitForAttempts(4);
  EXPECT_TRUE(committed().empty());
  SetStatus(absl::OkStatus());
  writer_->Stop();
  EXPECT_THAT(committed(), ElementsAre(0, 1));
}

TEST_F(ResultWriterTest, FlushAndStopDoNotWaitForADeadStore) {
  Start();
  SetStatus(absl::DataLossError("dead"));
  for (int i = 0; i < 5; ++i) Push(i);
  writer_->Flush();
  writer_->Stop();
  writer_->Stop();
  EXPECT_TRUE(committed().empty());
}

TEST_F(ResultWriterTest, StoppingCommitsWhatWaits) {
  Start();
  for (int i = 0; i < 100; ++i) Push(i);
  writer_.reset();
  EXPECT_EQ(committed().size(), 100u);
}

TEST_F(ResultWriterTest, BackgroundWorkGoesOnUntilThereIsNoneAndIsRetried) {
  {
    MutexLock lock(&mu_);
    background_left_ = 3;
    background_failures_ = 2;
  }
  Start();  // looks for some at once
  WaitForBackground(5);
  {
    MutexLock lock(&mu_);
    background_left_ = 2;
  }
  writer_->Wake();
  WaitForBackground(7);
  Push(0);
  writer_->Flush();
  EXPECT_THAT(committed(), ElementsAre(0));
}

}  // namespace
}  // namespace sluice
