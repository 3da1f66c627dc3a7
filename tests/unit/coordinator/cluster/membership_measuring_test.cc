// Workers that measure their machines.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/codec/profile_json.h"
#include "common/limits.h"
#include "tests/support/sample_profile.h"
#include "tests/unit/coordinator/cluster/membership_testing.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using Phase = Membership::Phase;

class MembershipMeasuringTest : public MembershipTest {
 protected:
  std::shared_ptr<RecordingStream> Come(int64_t id, const std::string& name) {
    v1::WorkerMessage message = Register(name);
    message.mutable_register_()->set_measuring(true);
    return Attach(id, message);
  }

  void Share(int64_t id, double share, bool awaits = false) {
    v1::WorkerMessage message;
    message.mutable_heartbeat()->set_measured_share(share);
    message.mutable_heartbeat()->set_awaits_measurement(awaits);
    members().OnMessage(WorkerId(id), std::move(message));
    members().Advance();
  }

  void Measured(int64_t id, const std::string& profile) {
    v1::WorkerMessage message;
    message.mutable_measured()->set_profile_json(profile);
    members().OnMessage(WorkerId(id), std::move(message));
    members().Advance();
  }

  v1::WorkerInfo Info(int64_t id) {
    v1::ClusterState state;
    members().Describe(&state);
    for (const v1::WorkerInfo& info : state.workers()) {
      if (info.id() == id) return info;
    }
    return {};
  }
};

TEST_F(MembershipMeasuringTest, TheyAreThereAndInNoPlanUntilTheyHave) {
  Come(1, "a");
  Come(2, "b");
  Share(1, 0.47);
  Share(2, 0, /*awaits=*/true);
  Settle();
  EXPECT_EQ(members().plan().phase(), Phase::kNoPlan);
  EXPECT_EQ(members().detail(),
            "waiting for workers: 0 of 2 registered; 2 workers measure their "
            "machines (47 %)");
  EXPECT_EQ(State(1), "WORKER_STATE_MEASURING");
  EXPECT_DOUBLE_EQ(Info(1).load_fraction(), 0.47);
  EXPECT_THAT(Info(2).detail(), HasSubstr("another process"));

  Measured(1, ProfileToJson(SampleProfile()));
  EXPECT_EQ(State(1), "WORKER_STATE_SPARE");
  EXPECT_THAT(Info(1).profile(), HasSubstr("\"host-1\""));
  Settle();
  EXPECT_EQ(members().detail(),
            "waiting for workers: 1 of 2 registered; worker 'b' measures its "
            "machine");
  Measured(2, "");  // it could not be measured
  Settle();
  EXPECT_EQ(members().plan().phase(), Phase::kLoading);
  EXPECT_EQ(members().plan().stages().size(), 2u);
}

TEST_F(MembershipMeasuringTest, APlanGoesOnWhileAnotherWorkerMeasures) {
  Attach(1, "a");
  Attach(2, "b");
  Settle();
  Ready(1);
  Ready(2);
  ASSERT_TRUE(members().plan().running());
  const auto c = Come(3, "c");
  Settle();
  EXPECT_TRUE(members().plan().running());
  EXPECT_EQ(State(3), "WORKER_STATE_MEASURING");
  Measured(3, "");
  Settle();
  EXPECT_EQ(State(3), "WORKER_STATE_PREPARING");
}

TEST_F(MembershipMeasuringTest, AProfileIsBoundedAndComesOnce) {
  const auto a = Come(1, "a");
  Measured(1, std::string(kMaxProfileBytes + 1, 'x'));
  EXPECT_THAT(std::string(a->broken.message()), HasSubstr("has a profile of"));
  Come(2, "b");
  Measured(2, ProfileToJson(SampleProfile()));
  Measured(2, "");
  EXPECT_NE(Info(2).profile(), "");
}

TEST_F(MembershipMeasuringTest, ADisturbedMeasurementIsSaid) {
  Come(1, "a");
  MachineProfile profile = SampleProfile();
  profile.disturbed = true;
  Measured(1, ProfileToJson(profile));
  EXPECT_THAT(Info(1).detail(), HasSubstr("other work ran"));
}

}  // namespace
}  // namespace sluice
