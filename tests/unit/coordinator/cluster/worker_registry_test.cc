#include "coordinator/cluster/worker_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/unit/coordinator/cluster/membership_testing.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class WorkerRegistryTest : public testing::Test {
 protected:
  WorkerRegistryTest() { options_.clock = &clock_; }

  std::shared_ptr<RecordingStream> Attach(int64_t id, const std::string& name,
                                          const std::string& hash = "c") {
    v1::Register info;
    info.set_name(name);
    info.set_link_address("link:" + name);
    info.set_model_fingerprint("f00d");
    auto* file = info.mutable_model_content()->add_files();
    file->set_name("config.json");
    file->set_bytes(1);
    file->set_hash(hash);
    auto stream = std::make_shared<RecordingStream>();
    registry().Open(WorkerId(id), stream, {});
    registry().Register(WorkerId(id), info);
    return stream;
  }

  WorkerRegistry& registry() {
    if (!registry_) registry_ = std::make_unique<WorkerRegistry>(options_);
    return *registry_;
  }

  ManualClock clock_;
  ClusterOptions options_;
  std::unique_ptr<WorkerRegistry> registry_;
};

TEST_F(WorkerRegistryTest, WhoIsToGoStaysUntilItIsRemoved) {
  const auto a = Attach(1, "a");
  EXPECT_TRUE(registry().TakeJoined());
  EXPECT_FALSE(registry().TakeJoined());
  a->full = true;
  registry().Send(WorkerId(1), {});
  registry().Send(WorkerId(9), {});  // no such worker
  EXPECT_TRUE(registry().any_doomed());
  EXPECT_TRUE(a->broken.ok());
  const auto doomed = registry().TakeDoomed();
  ASSERT_EQ(doomed.size(), 1u);
  EXPECT_EQ(doomed[0].first, WorkerId(1));
  clock_.Advance(absl::Seconds(5));
  const auto gone = registry().Remove(doomed[0].first, doomed[0].second);
  ASSERT_TRUE(gone.has_value());
  EXPECT_EQ(gone->info.name(), "a");
  EXPECT_EQ(a->broken, doomed[0].second);
  EXPECT_EQ(registry().changed_at(), clock_.Monotonic());
  EXPECT_THAT(registry().LastAbsent(), HasSubstr("does not take messages"));
  EXPECT_FALSE(registry().Remove(WorkerId(1), absl::OkStatus()).has_value());
}

TEST_F(WorkerRegistryTest, SilenceEnds) {
  Attach(1, "a");
  registry().PassTime(options_.timeouts.heartbeat_timeout);
  EXPECT_FALSE(registry().any_doomed());
  registry().PassTime(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(registry().TakeDoomed().at(0).second));
}

TEST_F(WorkerRegistryTest, OneThatIsRefusedIsGoneAtOnce) {
  Attach(1, "a");
  const auto other = Attach(2, "b", "another hash");
  EXPECT_FALSE(other->accepted);
  EXPECT_TRUE(absl::IsFailedPrecondition(other->broken));
  EXPECT_EQ(registry().Find(WorkerId(2)), nullptr);
  EXPECT_FALSE(registry().Remove(WorkerId(2), other->broken).has_value());
}

// When jobs that began with a copy of the model end, its workers are in no plan
// with those that have the coordinator's.
TEST_F(WorkerRegistryTest, AFormerModelIsDropped) {
  bool begun = true;
  ContentCheck::State own;
  own.content.files = {{"config.json", 1, "new"}};
  options_.model.own = [&] { return own; };
  options_.model.jobs_begun = [&] { return begun; };
  options_.model.begun.files = {{"config.json", 1, "old"}};
  Attach(1, "a", "old");
  registry().BeginModel(registry().at(WorkerId(1)).content);
  EXPECT_FALSE(registry().TakeBegunModel().has_value());  // as before
  registry().DropFormerModel();
  EXPECT_FALSE(registry().any_doomed());
  begun = false;
  Attach(2, "b", "new");
  const auto doomed = registry().TakeDoomed();
  ASSERT_EQ(doomed.size(), 1u);
  EXPECT_EQ(doomed[0].first, WorkerId(1));
  EXPECT_FALSE(registry().at(WorkerId(1)).same_model);
  EXPECT_TRUE(registry().at(WorkerId(2)).same_model);
  registry().BeginModel(registry().at(WorkerId(2)).content);
  EXPECT_TRUE(registry().TakeBegunModel().has_value());
}

TEST_F(WorkerRegistryTest, BlameEndsWithAPardon) {
  Attach(1, "a");
  Attach(2, "b");
  registry().BlameLink(WorkerId(1), WorkerId(2), "time-out");
  EXPECT_TRUE(registry().any_left_out());
  EXPECT_EQ(registry().OutOf(registry().at(WorkerId(1))), nullptr);
  const LeftOut::Entry* const out =
      registry().OutOf(registry().at(WorkerId(2)));
  ASSERT_NE(out, nullptr);
  EXPECT_THAT(out->why, HasSubstr("can't be reached at link:b: time-out"));
  registry().Pardon(WorkerId(2));
  EXPECT_FALSE(registry().any_left_out());
}

}  // namespace
}  // namespace sluice
