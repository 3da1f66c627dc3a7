#include "server/cli/jobs/follow.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// A client whose coordinator goes away during calls. Each call takes the next
// part of the script.
class FlakyClient : public JobClient {
 public:
  struct Part {
    int items = 0;  // states or results, before
    absl::Status end;
  };
  std::vector<Part> script;
  std::vector<int64_t> offsets;  // that were asked for
  size_t calls = 0;
  int64_t progress = 0;

  absl::StatusOr<v1::Job> WatchJob(
      const std::string& id,
      const std::function<bool(const v1::Job&)>& on_job) override {
    const Part& part = script.at(calls++);
    v1::Job job;
    job.set_id(id);
    for (int i = 0; i < part.items; ++i) {
      job.mutable_counts()->set_completed(++progress);
      if (!on_job(job)) return job;
    }
    if (!part.end.ok()) return part.end;
    return job;
  }
  absl::Status StreamResults(
      const std::string&, int64_t offset, bool,
      const std::function<absl::Status(const v1::Result&)>& on_result)
      override {
    offsets.push_back(offset);
    const Part& part = script.at(calls++);
    for (int i = 0; i < part.items; ++i) {
      v1::Result result;
      result.set_index(offset + i);
      if (absl::Status status = on_result(result); !status.ok()) return status;
    }
    return part.end;
  }
  absl::StatusOr<v1::Job> CreateJob(const v1::JobSpec&, std::istream*,
                                    const UploadProgress&) override {
    return v1::Job();
  }
  absl::Status get_job;  // how GetJob ends
  int gets = 0;
  absl::StatusOr<v1::Job> GetJob(const std::string&) override {
    ++gets;
    if (!get_job.ok()) return get_job;
    return v1::Job();
  }
  absl::StatusOr<v1::ListJobsResponse> ListJobs(
      const v1::ListJobsRequest&) override {
    return v1::ListJobsResponse();
  }
  absl::StatusOr<v1::Job> CancelJob(const std::string&) override {
    return v1::Job();
  }
  absl::StatusOr<v1::Job> PauseJob(const std::string&) override {
    return v1::Job();
  }
  absl::StatusOr<v1::Job> ResumeJob(const std::string&) override {
    return v1::Job();
  }
  absl::StatusOr<v1::Job> SetJobPriority(const std::string&, int32_t) override {
    return v1::Job();
  }
  absl::Status DeleteJob(const std::string&) override {
    return absl::OkStatus();
  }
  absl::StatusOr<v1::ClusterState> GetClusterState() override {
    return v1::ClusterState();
  }
  absl::Status DrainWorker(const std::string&, bool) override {
    return absl::OkStatus();
  }
  absl::StatusOr<v1::Trace> GetTrace(const std::string&) override {
    return v1::Trace();
  }
  void Stop() override {}
};

class FollowTest : public testing::Test {
 protected:
  Patience MakePatience() {
    Patience::Options options;
    options.on_away = [this] { ++told_; };
    options.sleep = [this](absl::Duration time) {
      if (time > absl::ZeroDuration()) waits_.push_back(time);
      return stopped_;
    };
    options.first_wait = absl::Seconds(1);
    options.max_wait = absl::Seconds(4);
    return Patience(std::move(options));
  }

  FlakyClient client_;
  int told_ = 0;
  bool stopped_ = false;
  std::vector<absl::Duration> waits_;
  const absl::Status away_ = absl::UnavailableError("away");
};

TEST_F(FollowTest, WatchesThroughRestarts) {
  client_.script = {
      {2, away_},           {0, away_},
      {0, away_},           {0, away_},
      {0, away_},           {1, absl::CancelledError("its server ends")},
      {1, absl::OkStatus()}};
  Patience patience = MakePatience();
  std::vector<int64_t> seen;
  const auto last = WatchToEnd(
      client_, "job_1", patience,
      [&](const v1::Job& job) { seen.push_back(job.counts().completed()); });
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(seen, (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(told_, 2) << "once each time that it went away";
  EXPECT_EQ(waits_, (std::vector<absl::Duration>{
                        absl::Seconds(1), absl::Seconds(2), absl::Seconds(4),
                        absl::Seconds(4), absl::Seconds(4), absl::Seconds(1)}));
}

TEST_F(FollowTest, SomebodyWhoWasNeverThereIsNotWaitedFor) {
  client_.script = {{0, away_}};
  Patience patience = MakePatience();
  EXPECT_EQ(
      WatchToEnd(client_, "job_1", patience, [](const v1::Job&) {}).status(),
      away_);
  EXPECT_EQ(told_, 0);
}

TEST_F(FollowTest, EndsWhenTheJobIsGone) {
  client_.script = {{1, away_}, {0, absl::NotFoundError("no job")}};
  Patience patience = MakePatience();
  EXPECT_TRUE(absl::IsNotFound(
      WatchToEnd(client_, "job_1", patience, [](const v1::Job&) {}).status()));
}

TEST_F(FollowTest, EachResultComesOnce) {
  client_.script = {{3, away_}, {0, away_}, {2, away_}, {4, absl::OkStatus()}};
  Patience patience = MakePatience();
  std::vector<int64_t> seen;
  ASSERT_TRUE(StreamToEnd(client_, "job_1", 10, true, patience,
                          [&](const v1::Result& result) {
                            seen.push_back(result.index());
                            return absl::OkStatus();
                          })
                  .ok());
  EXPECT_EQ(seen, (std::vector<int64_t>{10, 11, 12, 13, 14, 15, 16, 17, 18}));
  EXPECT_EQ(client_.offsets, (std::vector<int64_t>{10, 13, 13, 15}));
}

TEST_F(FollowTest, ARestartBeforeTheFirstResultIsOutlived) {
  client_.script = {{0, away_}, {0, away_}, {2, absl::OkStatus()}};
  Patience patience = MakePatience();
  int seen = 0;
  EXPECT_TRUE(
      StreamToEnd(client_, "job_1", 0, true, patience, [&](const v1::Result&) {
        ++seen;
        return absl::OkStatus();
      }).ok());
  EXPECT_EQ(seen, 2);
  EXPECT_EQ(told_, 1);
}

TEST_F(FollowTest, WhoWasHeardBeforeIsWaitedForFromTheStart) {
  // The coordinator is away, so that it could not be asked.
  client_.get_job = away_;
  client_.script = {{0, away_}, {2, absl::OkStatus()}};
  Patience patience = MakePatience();
  patience.Heard();
  EXPECT_TRUE(
      StreamToEnd(client_, "job_1", 0, false, patience, [](const v1::Result&) {
        return absl::OkStatus();
      }).ok());
  EXPECT_EQ(client_.gets, 0);
  EXPECT_EQ(told_, 1);
}

TEST_F(FollowTest, ResultsOfNobodyAreNotWaitedFor) {
  for (const absl::Status& error : {away_, absl::NotFoundError("no job")}) {
    client_.get_job = error;
    Patience patience = MakePatience();
    EXPECT_EQ(StreamToEnd(client_, "job_1", 0, true, patience,
                          [](const v1::Result&) { return absl::OkStatus(); }),
              error);
  }
  EXPECT_EQ(client_.calls, 0u);
  EXPECT_EQ(told_, 0);
}

TEST_F(FollowTest, ACommandThatIsAskedToStopDoesNotTryAgain) {
  // The client's own end of a call looks like a coordinator's.
  client_.script = {{1, absl::CancelledError("the client was stopped")}};
  Patience patience = MakePatience();
  const auto last = WatchToEnd(client_, "job_1", patience,
                               [&](const v1::Job&) { stopped_ = true; });
  EXPECT_TRUE(absl::IsCancelled(last.status())) << last.status();
  EXPECT_EQ(client_.calls, 1u);
  EXPECT_EQ(told_, 0);
}

TEST_F(FollowTest, AnErrorOfTheReceiverIsFinal) {
  client_.script = {{3, absl::OkStatus()}};
  Patience patience = MakePatience();
  // The code does not matter: the disk is full, not the coordinator away.
  EXPECT_EQ(StreamToEnd(client_, "job_1", 0, true, patience,
                        [&](const v1::Result&) { return away_; }),
            away_);
  EXPECT_EQ(client_.calls, 1u);
  EXPECT_TRUE(waits_.empty());
}

}  // namespace
}  // namespace sluice
