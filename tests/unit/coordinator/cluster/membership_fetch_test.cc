#include <string>

#include "gmock/gmock.h"
#include "tests/unit/coordinator/cluster/membership_testing.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Workers without a copy of the model.
class MembershipFetchTest : public MembershipTest {
 protected:
  MembershipFetchTest() {
    options_.min_workers = 1;
    options_.model_config = "{}";
  }

  static v1::WorkerMessage Fetcher(const std::string& name) {
    v1::WorkerMessage message = Register(name);
    message.mutable_register_()->clear_model_fingerprint();
    message.mutable_register_()->clear_model_content();
    message.mutable_register_()->set_fetches_model(true);
    return message;
  }
  static v1::WorkerMessage Holder(const std::string& name,
                                  const std::string& hash) {
    v1::WorkerMessage message = Register(name);
    SetFile(message.mutable_register_()->mutable_model_content(),
            "m.safetensors", hash);
    return message;
  }
  // The coordinator has a copy whose file has this hash; "": not yet known.
  void HaveOwn(const std::string& hash) {
    own_.content = *ContentOf(Holder("", hash).register_().model_content());
    options_.model.own = [this] { return own_; };
    options_.model.own_dir = "/head";
  }
  static const v1::ModelSource& Told(const RecordingStream& stream) {
    for (auto it = stream.sent.rbegin(); it != stream.sent.rend(); ++it) {
      if (it->has_assign_stage()) return it->assign_stage().model();
    }
    ADD_FAILURE() << "no stage was assigned";
    return v1::ModelSource::default_instance();
  }

  ContentCheck::State own_;
};

TEST_F(MembershipFetchTest, FetchesFromTheCoordinator) {
  HaveOwn("aa");
  own_.content.copies = R"({"m.safetensors":["x"]})";
  auto stream = Attach(1, Fetcher("w1"));
  EXPECT_TRUE(stream->accepted);
  Settle();
  const v1::ModelSource& told = Told(*stream);
  EXPECT_TRUE(told.coordinator());
  EXPECT_EQ(told.config(), "{}");
  ASSERT_EQ(told.content().files_size(), 2);
  EXPECT_EQ(told.content().files(1).name(), "m.safetensors");
  EXPECT_EQ(told.content().files(1).bytes(), 1u);
  EXPECT_EQ(told.content().files(1).hash(), "aa");
  EXPECT_EQ(told.content().copies(), own_.content.copies);
  EXPECT_THAT(told.peers(), IsEmpty());
  EXPECT_THAT(told.fetchers(), IsEmpty());
}

TEST_F(MembershipFetchTest, HashesOfAnEarlierVersionAreReplaced) {
  // Unfinished jobs began with this model, whose hashes had another form then.
  const std::string hash = "p0123456789abcdef0123456789abcdef";
  HaveOwn("abcdef");
  options_.model.begun = own_.content;
  options_.model.jobs_begun = [] { return true; };
  HaveOwn(hash);
  auto stream = Attach(1, Fetcher("w1"));
  Settle();
  EXPECT_TRUE(Told(*stream).coordinator());
  EXPECT_EQ(Told(*stream).content().files(1).hash(), hash);
}

TEST_F(MembershipFetchTest, WaitsUntilTheCoordinatorKnowsItsHashes) {
  HaveOwn("");
  Attach(1, Fetcher("w1"));
  Settle();
  EXPECT_EQ(State(1), "WORKER_STATE_CHECKING");
  EXPECT_THAT(members().detail(),
              HasSubstr("the coordinator is checking its weights"));
  HaveOwn("aa");
  members().Advance();
  Settle();
  EXPECT_EQ(State(1), "WORKER_STATE_LOADING");
}

TEST_F(MembershipFetchTest, FetchesFromWorkersThatHaveTheModel) {
  options_.min_workers = 3;
  auto one = Attach(1, Fetcher("w1"));
  auto two = Attach(2, Fetcher("w2"));
  Settle();
  EXPECT_EQ(State(1), "WORKER_STATE_CHECKING");
  EXPECT_THAT(
      members().detail(),
      HasSubstr("worker 'w1' waits for another one that has the model"));
  auto holder = Attach(3, Holder("w3", "aa"));
  Settle();
  EXPECT_FALSE(Told(*one).coordinator());
  EXPECT_THAT(Told(*one).peers(), ElementsAre("link:w3"));
  EXPECT_THAT(Told(*one).fetchers(), ElementsAre("link:w2"));
  EXPECT_THAT(Told(*two).fetchers(), ElementsAre("link:w1"));
  // Who has the model is told nothing of it.
  EXPECT_FALSE(holder->sent.back().assign_stage().has_model());
}

TEST_F(MembershipFetchTest, EachIsToldOfSomeWhoHaveTheModelNotOfTheSame) {
  options_.min_workers = 42;
  options_.num_layers = 64;
  for (int i = 1; i <= 40; ++i) {
    Attach(i, Holder(absl::StrCat("w", i), "aa"));
  }
  auto one = Attach(41, Fetcher("f1"));
  auto two = Attach(42, Fetcher("f2"));
  Settle();
  EXPECT_EQ(Told(*one).peers_size(), 16);
  EXPECT_EQ(Told(*one).peers(0), "link:w1");
  EXPECT_THAT(Told(*one).fetchers(), ElementsAre("link:f2"));
  EXPECT_THAT(Told(*two).fetchers(), ElementsAre("link:f1"));
}

TEST_F(MembershipFetchTest, AFetcherTakesWhicheverModelComesToCount) {
  auto fetcher = Attach(1, Fetcher("w1"));
  Attach(2, Holder("w2", "aa"));
  Settle();
  EXPECT_EQ(Told(*fetcher).content().files(1).hash(), "aa");
  // The only holder is gone, and another one comes with another model.
  members().OnClosed(WorkerId(2), absl::UnavailableError("gone"));
  auto other = Attach(3, Holder("w3", "bb"));
  EXPECT_TRUE(other->accepted);
  EXPECT_TRUE(other->broken.ok());
  Settle();
  EXPECT_EQ(fetcher->broken.code(), absl::StatusCode::kFailedPrecondition);
  auto again = Attach(4, Fetcher("w1"));
  Settle();
  EXPECT_EQ(Told(*again).content().files(1).hash(), "bb");
}

TEST_F(MembershipFetchTest, WhatCountsIsNotTheFetchersToSay) {
  Attach(1, Fetcher("w1"));
  // A worker with the model is not compared with one that has none.
  EXPECT_TRUE(Attach(2, Holder("w2", "aa"))->accepted);
  EXPECT_FALSE(Attach(3, Holder("w3", "bb"))->accepted);
  v1::WorkerMessage both = Holder("w4", "aa");
  both.mutable_register_()->set_fetches_model(true);
  const auto refused = Attach(4, both);
  EXPECT_FALSE(refused->accepted);
  EXPECT_THAT(std::string(refused->broken.message()),
              HasSubstr("has a copy of the model and fetches it"));
}

TEST_F(MembershipFetchTest, LoadingTellsWhatIsFetched) {
  HaveOwn("aa");
  Attach(1, Fetcher("w1"));
  Settle();
  v1::WorkerMessage message;
  v1::LoadProgress* progress = message.mutable_load_progress();
  progress->set_epoch(members().plan().epoch().value());
  progress->set_bytes_done(30);
  progress->set_bytes_total(100);
  progress->set_fetching(true);
  members().OnMessage(WorkerId(1), message);
  EXPECT_THAT(members().detail(), HasSubstr("fetching weights: 30 %"));
  progress->set_fetching(false);
  members().OnMessage(WorkerId(1), message);
  EXPECT_THAT(members().detail(), HasSubstr("loading layers: 30 %"));
}

}  // namespace
}  // namespace sluice
