#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "tests/unit/coordinator/cluster/membership_testing.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MembershipModelTest : public MembershipTest {
 protected:
  MembershipModelTest() { options_.min_workers = 1; }

  // Registers with two shards of these hashes; "" is not known yet.
  static v1::WorkerMessage Shards(const std::string& name,
                                  const std::string& first,
                                  const std::string& second) {
    v1::WorkerMessage message = Register(name);
    v1::Register* info = message.mutable_register_();
    info->set_model_dir("/models/" + name);
    SetFile(info->mutable_model_content(), "m-1.safetensors", first);
    SetFile(info->mutable_model_content(), "m-2.safetensors", second);
    return message;
  }

  // The message of a worker that has hashed its files.
  static v1::WorkerMessage Hashed(const std::string& first,
                                  const std::string& second) {
    v1::WorkerMessage message;
    *message.mutable_model_content() =
        Shards("", first, second).register_().model_content();
    return message;
  }

  void Say(int64_t id, v1::WorkerMessage message) {
    members().OnMessage(WorkerId(id), std::move(message));
    members().Advance();
  }

  static ModelContent Content(const std::string& first,
                              const std::string& second) {
    return *ContentOf(Hashed(first, second).model_content());
  }

  ContentCheck::State own_;  // the coordinator's
};

TEST_F(MembershipModelTest, AWorkerWithAnotherShardIsRefusedInOneShortLine) {
  Attach(1, Shards("w1", "aa", "bb"));
  auto other = Attach(2, Shards("w2", "aa", "b7"));
  EXPECT_FALSE(other->accepted);
  EXPECT_EQ(other->broken,
            absl::FailedPreconditionError(
                "worker 'w2' has another model in /models/w2 than worker 'w1' "
                "in /models/w1: m-2.safetensors differs; copy it again"));
  EXPECT_TRUE(Attach(3, Shards("w3", "aa", "bb"))->accepted);
  EXPECT_EQ(State(2), "");
  EXPECT_EQ(State(3), "WORKER_STATE_SPARE");
}

TEST_F(MembershipModelTest, FilesThatAreMissingOrOfAnotherSizeAreNamedAtOnce) {
  Attach(1, Shards("w1", "aa", "bb"));
  v1::WorkerMessage less = Shards("w2", "", "");
  less.mutable_register_()
      ->mutable_model_content()
      ->mutable_files()
      ->RemoveLast();
  EXPECT_THAT(std::string(Attach(2, less)->broken.message()),
              HasSubstr(": m-2.safetensors is missing;"));
  v1::WorkerMessage longer = Shards("w3", "", "");
  longer.mutable_register_()
      ->mutable_model_content()
      ->mutable_files(1)
      ->set_bytes(7);
  SetFile(longer.mutable_register_()->mutable_model_content(), "m-0", "");
  EXPECT_THAT(std::string(Attach(3, longer)->broken.message()),
              HasSubstr(": m-0 should not be there, and 1 other;"));
}

TEST_F(MembershipModelTest, AnotherModelIsNotToBeCopiedAgain) {
  Attach(1, Shards("w1", "aa", "bb"));
  v1::WorkerMessage other = Shards("w2", "cc", "dd");
  other.mutable_register_()
      ->mutable_model_content()
      ->mutable_files(0)
      ->set_hash("another config");
  EXPECT_THAT(std::string(Attach(2, other)->broken.message()),
              HasSubstr("config.json differs, and 2 others; give the worker "
                        "that model by --model, or leave --model out"));
}

TEST_F(MembershipModelTest, RandomWeightsAreNamedAsTheCause) {
  Attach(1, Shards("w1", "aa", "bb"));
  EXPECT_THAT(std::string(Attach(2, "w2")->broken.message()),
              HasSubstr("m-1.safetensors is missing, and 1 other; start both "
                        "with --load-format dummy, or neither"));
}

TEST_F(MembershipModelTest, NoPlanHasAWorkerWhoseFilesAreNotHashedYet) {
  auto a = Attach(1, Shards("w1", "", ""));
  EXPECT_TRUE(a->accepted);
  EXPECT_EQ(State(1), "WORKER_STATE_CHECKING");
  v1::WorkerMessage heartbeat;
  heartbeat.mutable_heartbeat()->set_hashed_bytes(43);
  heartbeat.mutable_heartbeat()->set_bytes_to_hash(100);
  Say(1, heartbeat);
  Settle();
  EXPECT_EQ(members().plan().phase(), Membership::Phase::kNoPlan);
  EXPECT_EQ(members().detail(),
            "waiting for workers: 1 registered, 0 of 1 in the pipeline; worker "
            "'w1' is checking its weights: 43 %");
  Say(1, Hashed("aa", "bb"));
  EXPECT_EQ(State(1), "WORKER_STATE_SPARE");
  Settle();
  EXPECT_EQ(members().plan().phase(), Membership::Phase::kLoading);
  // Another worker comes later, and has another model.
  auto b = Attach(2, Shards("w2", "", ""));
  Settle();
  Say(2, Hashed("aa", "b7"));
  EXPECT_THAT(b->broken.ToString(), HasSubstr("m-2.safetensors differs"));
  EXPECT_EQ(members().plan().phase(), Membership::Phase::kLoading);
}

TEST_F(MembershipModelTest, TheFirstOfSeveralThatAreCheckedCounts) {
  auto a = Attach(1, Shards("w1", "", ""));
  auto b = Attach(2, Shards("w2", "", ""));
  Say(2, Hashed("aa", "b7"));
  Say(1, Hashed("aa", "bb"));
  EXPECT_THAT(a->broken.ToString(), HasSubstr("than worker 'w2'"));
  EXPECT_TRUE(b->broken.ok());
}

TEST_F(MembershipModelTest, AWorkerThatCannotReadItsFilesIsRefused) {
  auto a = Attach(1, Shards("w1", "", ""));
  v1::WorkerMessage failed = Hashed("", "");
  failed.mutable_model_content()->set_error("m-1: Input/output error");
  Say(1, failed);
  EXPECT_THAT(a->broken.ToString(),
              HasSubstr("worker 'w1' can't read its model: m-1: Input/output"));
}

TEST_F(MembershipModelTest, TheCoordinatorsOwnCopyCounts) {
  own_.content = Content("", "");
  options_.model.own = [this] { return own_; };
  options_.model.own_dir = "/models/head";
  auto a = Attach(1, Shards("w1", "aa", "b7"));
  auto b = Attach(2, Shards("w2", "aa", "bb"));
  Settle();
  EXPECT_EQ(members().detail(),
            "waiting for workers: 2 registered, 0 of 1 in the pipeline; the "
            "coordinator is checking its weights");
  own_.content = Content("aa", "bb");
  members().Advance();
  EXPECT_THAT(a->broken.ToString(),
              HasSubstr("than the coordinator in /models/head: "
                        "m-2.safetensors differs"));
  EXPECT_EQ(State(2), "WORKER_STATE_SPARE");
  // The refused one tries again, all hashed.
  EXPECT_FALSE(Attach(3, Shards("w1", "aa", "b7"))->accepted);
}

TEST_F(MembershipModelTest, WhatTheCoordinatorCannotReadCountsForNothing) {
  own_.content = Content("", "");
  own_.error = absl::DataLossError("no");
  options_.model.own = [this] { return own_; };
  Attach(1, Shards("w1", "aa", "bb"));
  EXPECT_EQ(State(1), "WORKER_STATE_SPARE");
}

TEST_F(MembershipModelTest, JobsThatBeganWithACopyKeepIt) {
  bool begun = false;
  options_.model.jobs_begun = [&] { return begun; };
  auto a = Attach(1, Shards("w1", "aa", "bb"));
  Settle();
  EXPECT_FALSE(members().workers().TakeBegunModel().has_value());
  Ready(1);
  EXPECT_EQ(members().workers().TakeBegunModel(), Content("aa", "bb"));
  EXPECT_FALSE(members().workers().TakeBegunModel().has_value());
  begun = true;
  members().OnClosed(WorkerId(1), absl::UnavailableError("gone"));
  auto b = Attach(2, Shards("w2", "aa", "b7"));
  EXPECT_THAT(b->broken.ToString(),
              HasSubstr("than unfinished jobs began with: m-2.safetensors "
                        "differs; copy that one again, or cancel these jobs"));
  begun = false;  // they ended
  EXPECT_TRUE(Attach(3, Shards("w2", "aa", "b7"))->accepted);
  Settle();
  Ready(3);
  EXPECT_EQ(members().workers().TakeBegunModel(), Content("aa", "b7"));
}

TEST_F(MembershipModelTest, JobsOfAnEarlierLifeKeepTheirCopyToo) {
  options_.model.begun = Content("aa", "bb");
  options_.model.jobs_begun = [] { return true; };
  EXPECT_FALSE(Attach(1, Shards("w1", "aa", "b7"))->accepted);
  EXPECT_TRUE(Attach(2, Shards("w1", "aa", "bb"))->accepted);
  Settle();
  Ready(2);
  EXPECT_FALSE(
      members().workers().TakeBegunModel().has_value());  // nothing new
}

// The coordinator began anew, with another copy than its unfinished jobs.
class MembershipFormerModelTest : public MembershipModelTest {
 protected:
  MembershipFormerModelTest() {
    own_.content = Content("aa", "b7");
    options_.model.own = [this] { return own_; };
    options_.model.own_dir = "/models/head";
    options_.model.begun = Content("aa", "bb");
    options_.model.jobs_begun = [this] { return begun_; };
  }

  bool begun_ = true;
};

TEST_F(MembershipFormerModelTest, IsInNoPlanWithTheOneThatCounts) {
  auto a = Attach(1, Shards("w1", "aa", "bb"));
  EXPECT_FALSE(Attach(2, Shards("w2", "aa", "b7"))->accepted);
  Settle();
  Ready(1);
  ASSERT_EQ(members().plan().phase(), Membership::Phase::kRunning);
  begun_ = false;  // the jobs ended
  members().Advance();
  EXPECT_EQ(members().plan().phase(), Membership::Phase::kRunning);
  auto b = Attach(3, Shards("w2", "aa", "b7"));
  EXPECT_TRUE(b->accepted);
  EXPECT_THAT(
      a->broken.ToString(),
      HasSubstr("worker 'w1' has another model in /models/w1 than the "
                "coordinator in /models/head: m-2.safetensors differs"));
  EXPECT_EQ(State(1), "");
  Settle();
  ASSERT_EQ(members().plan().phase(), Membership::Phase::kLoading);
  EXPECT_EQ(b->sent.back().assign_stage().num_stages(), 1);
  EXPECT_FALSE(Attach(4, Shards("w1", "aa", "bb"))->accepted);
}

TEST_F(MembershipFormerModelTest, IsNoMoreWhenItsFilesAreHashedLast) {
  auto a = Attach(1, Shards("w1", "aa", "bb"));
  auto b = Attach(2, Shards("w2", "aa", ""));
  begun_ = false;
  Say(2, Hashed("aa", "b7"));
  EXPECT_FALSE(a->broken.ok());
  EXPECT_TRUE(b->broken.ok());
  EXPECT_EQ(State(2), "WORKER_STATE_SPARE");
}

TEST_F(MembershipFormerModelTest, ComputesNoJobThatComesAfterThoseOfItsOwn) {
  auto a = Attach(1, Shards("w1", "aa", "bb"));
  Settle();
  Ready(1);
  members().OnNewJobs();  // while there are others yet
  EXPECT_EQ(members().plan().phase(), Membership::Phase::kRunning);
  begun_ = false;
  members().OnNewJobs();
  EXPECT_THAT(a->broken.ToString(), HasSubstr("than the coordinator"));
  EXPECT_EQ(members().plan().phase(), Membership::Phase::kNoPlan);
}

TEST_F(MembershipModelTest, WhatNoDirectoryCanHoldIsRefused) {
  v1::WorkerMessage message = Shards("w1", "aa", "bb");
  for (int i = 0; i < 10'001; ++i) {
    message.mutable_register_()->mutable_model_content()->add_files()->set_name(
        absl::StrCat("f", i));
  }
  EXPECT_EQ(Attach(1, message)->broken.code(),
            absl::StatusCode::kInvalidArgument);
  message = Shards("w1", "aa", std::string(65, 'x'));
  EXPECT_EQ(Attach(2, message)->broken.code(),
            absl::StatusCode::kInvalidArgument);
  // A name is shown without its control characters.
  Attach(3, Shards("w1", "aa", "bb"));
  message = Shards("w2", "aa", "bb");
  SetFile(message.mutable_register_()->mutable_model_content(), "a\x1b[2J", "");
  EXPECT_THAT(Attach(4, message)->broken.ToString(), HasSubstr("a\\033[2J"));
  // A worker that does not tell its files has to wait.
  message = Register("w3");
  message.mutable_register_()->clear_model_content();
  EXPECT_FALSE(Attach(5, message)->accepted);
}

}  // namespace
}  // namespace sluice
