#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/device_loss.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/worker/worker_chain_testing.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(WorkerChainTest, RegistersItselfAndSendsHeartbeats) {
  StartWorkers(1);
  const v1::Register registration = coordinator_.AwaitAttached("w0");
  EXPECT_EQ(registration.name(), "w0");
  EXPECT_EQ(registration.link_address(), workers_[0]->address());
  EXPECT_EQ(registration.host_memory_bytes(), uint64_t{1} << 30);
  EXPECT_EQ(registration.compute_threads(), 3);
  EXPECT_THAT(registration.device(), HasSubstr("cpu: "));
  EXPECT_FALSE(registration.version().empty());
  EXPECT_EQ(registration.model_dir(), "/models/test");
  const auto any = [](const v1::Heartbeat&) { return true; };
  const double first = coordinator_.AwaitHeartbeat("w0", any).idle_seconds();
  coordinator_.AwaitHeartbeat("w0", [&](const v1::Heartbeat& h) {
    return h.idle_seconds() > first && h.busy_seconds() == 0;
  });
}

TEST_F(WorkerChainTest, OneStage) {
  StartWorkers(1);
  AssignAll(1);
  EXPECT_TRUE(workers_[0]->worker().ready());
  for (int step = 0; step < 3; ++step) ExpectStepWorks(1, 0, step);
}

TEST_F(WorkerChainTest, ReportsProgressAndWhatIsLoaded) {
  StartWorkers(1);
  coordinator_.Send("w0", Assignment(1, 0));
  const auto progress = coordinator_.Await("w0", [](const auto& m) {
    return m.has_load_progress() && m.load_progress().bytes_done() > 0;
  });
  EXPECT_EQ(progress.load_progress().epoch(), 1);
  EXPECT_EQ(progress.load_progress().bytes_total(), 1000u);
  const v1::StageReady ready = coordinator_.AwaitReady("w0", 1);
  EXPECT_EQ(ready.kv_pages(), 100);
  EXPECT_TRUE(ready.kv_by_need());
  EXPECT_EQ(ready.page_tokens(), 16);
  EXPECT_EQ(ready.weight_bytes(), 6000u);
  EXPECT_EQ(workers_[0]->metrics().Value("sluice_weight_bytes{worker=w0}"),
            6000);
}

TEST_F(WorkerChainTest, ThreeStagesKeepOrderWithBlocksInFlight) {
  StartWorkers(3);
  AssignAll(1);
  ExpectStepsInOrder(/*steps=*/20, /*blocks=*/3);
  for (const auto& worker : workers_) {
    const std::string label = absl::StrCat("{worker=", worker->name(), "}");
    TestMetrics& metrics = worker->metrics();
    EXPECT_EQ(metrics.Value("sluice_worker_steps_total" + label), 60);
    EXPECT_EQ(metrics.Value("sluice_stage_step_seconds" + label), 60);
    EXPECT_EQ(metrics.Value("sluice_kv_cache_usage_perc" + label), 0.06);
    EXPECT_EQ(metrics.Value(absl::StrCat(
                  "sluice_worker_tokens_total{phase=prefill,worker=",
                  worker->name(), "}")),
              3 * 2 * 3);
    EXPECT_EQ(metrics.Value(absl::StrCat(
                  "sluice_worker_tokens_total{phase=decode,worker=",
                  worker->name(), "}")),
              19 * 2 * 3);
  }
  EXPECT_GT(LinkBytes(0, "sent"), 60 * 2 * 32);
  EXPECT_EQ(LinkBytes(0, "sent"), LinkBytes(1, "received"));
  EXPECT_EQ(LinkBytes(1, "sent"), LinkBytes(2, "received"));
  EXPECT_EQ(LinkBytes(2, "sent"), 0);
  coordinator_.AwaitHeartbeat("w1", [&](const v1::Heartbeat& h) {
    return h.link_bytes_sent() == LinkBytes(1, "sent") &&
           h.kv_pages_used() == 6 && h.busy_seconds() > 0 &&
           h.waiting_seconds() > 0;
  });
  EXPECT_GT(workers_[1]->metrics().Value(
                "sluice_stage_waiting_seconds_total{stage=1,worker=w1}"),
            0);
}

TEST_F(WorkerChainTest, AStageBeginsWithTheFirstMicroBatch) {
  StartWorkers(3);
  AssignAll(1);
  workers_[0]->model().CloseBatchGate();
  coordinator_.Send("w0", Step(1, 0, 0));
  workers_[2]->model().AwaitBatches(1);
  workers_[0]->model().OpenBatchGate();
  ExpectResult(coordinator_.AwaitResult("w2"), 1, 0, 0);
}

TEST_F(WorkerChainTest, AnEpochEndsWhileAStageWaitsForTheRestOfAStep) {
  StartWorkers(2);
  AssignAll(1);
  workers_[0]->model().CloseBatchGate();
  coordinator_.Send("w0", Step(1, 0, 0));
  workers_[1]->model().AwaitBatches(1);
  coordinator_.Send("w1", Assignment(2, 1));
  coordinator_.AwaitReady("w1", 2);
  workers_[0]->model().OpenBatchGate();
  coordinator_.Send("w0", Assignment(2, 0));
  coordinator_.AwaitReady("w0", 2);
  ExpectStepWorks(2);
}

TEST_F(WorkerChainTest, PlansWithoutMicroBatchesPassThrough) {
  StartWorkers(3);
  AssignAll(1);
  ExpectStepWorks(1);
  v1::CoordinatorMessage release = Step(1, 1, 1, 0);
  release.mutable_step_plan()->add_release(0);
  release.mutable_step_plan()->add_release(1);
  coordinator_.Send("w0", release);
  ExpectResult(coordinator_.AwaitResult("w2"), 1, 1, 1, 0);
  for (const auto& worker : workers_) {
    coordinator_.AwaitHeartbeat(worker->name(), [](const v1::Heartbeat& h) {
      return h.kv_pages_used() == 0;
    });
  }
}

// The first stage is ready long before the second one is.
TEST_F(WorkerChainTest, FramesForAStageThatStillLoadsAreNotLost) {
  StartWorkers(2);
  workers_[1]->model().CloseLoadGate();
  coordinator_.Send("w0", Assignment(1, 0));
  coordinator_.AwaitReady("w0", 1);
  for (int step = 0; step < 10; ++step) {
    coordinator_.Send("w0", Step(1, 0, step));
  }
  workers_[0]->model().AwaitSteps(2);
  coordinator_.Send("w1", Assignment(1, 1));
  workers_[1]->model().AwaitLoads(1);
  EXPECT_FALSE(workers_[1]->worker().ready());
  workers_[1]->model().OpenLoadGate();
  for (int step = 0; step < 10; ++step) {
    ExpectResult(coordinator_.AwaitResult("w1"), 1, 0, step);
  }
}

TEST_F(WorkerChainTest, BackPressureReachesTheFirstStage) {
  StartWorkers(2);
  AssignAll(1);
  workers_[1]->model().CloseStepGate();
  for (int step = 0; step < 50; ++step) {
    coordinator_.Send("w0", Step(1, 0, step));
  }
  workers_[1]->model().AwaitSteps(1);
  // In total: 4 credits, the step that w1 computes, 4 in w0's outbox, 1 being
  // sent, and the step that w0 computes. In steps of 2 frames, at most 6.
  coordinator_.AwaitHeartbeat(
      "w0", [](const v1::Heartbeat& h) { return h.waiting_seconds() > 0.05; });
  EXPECT_LE(
      workers_[0]->metrics().Value("sluice_worker_steps_total{worker=w0}"), 6);
  workers_[1]->model().OpenStepGate();
  for (int step = 0; step < 50; ++step) {
    ExpectResult(coordinator_.AwaitResult("w1"), 1, 0, step);
  }
}

TEST_F(WorkerChainTest, NewEpochReplacesTheOldOne) {
  StartWorkers(3);
  for (int64_t epoch = 1; epoch <= 6; ++epoch) {
    AssignAll(epoch, epoch % 2 == 0);
    // Other steps of the old epoch in flight are forgotten.
    for (int step = 0; step < 5; ++step) {
      coordinator_.Send("w0", Step(epoch, 0, step));
    }
    const v1::StepResult result = coordinator_.AwaitResult("w2");
    ExpectResult(result, epoch, 0, 0);
  }
  // The same layers: nothing was loaded again.
  for (const auto& worker : workers_) {
    EXPECT_EQ(worker->model().loads(), 1);
    EXPECT_GE(worker->model().resets(), 5);
  }
}

TEST_F(WorkerChainTest, OtherLayersAreLoaded) {
  StartWorkers(2);
  AssignAll(1);
  v1::CoordinatorMessage assignment = Assignment(2, 1);
  assignment.mutable_assign_stage()->mutable_layers()->set_begin(4);
  coordinator_.Send("w1", assignment);
  EXPECT_EQ(coordinator_.AwaitReady("w1", 2).weight_bytes(), 2000u);
  EXPECT_EQ(workers_[1]->model().loads(), 2);
  EXPECT_EQ(workers_[1]->model().live_executors(), 1);
  // Another dtype is loaded, too.
  assignment.mutable_assign_stage()->set_epoch(3);
  assignment.mutable_assign_stage()->mutable_policy()->set_dtype(
      v1::DTYPE_BFLOAT16);
  coordinator_.Send("w1", assignment);
  coordinator_.AwaitReady("w1", 3);
  EXPECT_EQ(workers_[1]->model().loads(), 3);
}

TEST_F(WorkerChainTest, ReportsWhatAllItsRuntimesDid) {
  StartWorkers(1);
  AssignAll(1);
  for (int step = 0; step < 3; ++step) ExpectStepWorks(1, 0, step);
  // The first runtime's totals are kept.
  v1::CoordinatorMessage assignment = Assignment(2, 0);
  assignment.mutable_assign_stage()->mutable_policy()->set_gbs(5);
  coordinator_.Send("w0", assignment);
  coordinator_.AwaitReady("w0", 2);
  EXPECT_EQ(workers_[0]->model().loads(), 2);
  for (int step = 0; step < 2; ++step) ExpectStepWorks(2, 0, step);
  const RuntimeReport report = workers_[0]->worker().report();
  EXPECT_EQ(report.stats.projection_seconds, 2.5);
  EXPECT_EQ(report.stats.disk_read_bytes, 500u);
  EXPECT_EQ(report.placement.weight_bytes, 1000u);
  EXPECT_EQ(report.placement.kv_host_bytes, 20u);
  const auto value = [&](const std::string& key) {
    return workers_[0]->metrics().Value(key + ",worker=w0}");
  };
  EXPECT_EQ(value("sluice_runtime_seconds_total{activity=projection"), 2.5);
  EXPECT_EQ(value("sluice_tier_bytes_total{wire=disk_read"), 500);
  EXPECT_EQ(value("sluice_placement_bytes{kind=weights,tier=host"), 400);
  EXPECT_EQ(value("sluice_placement_bytes{kind=weights,tier=disk"), 600);
  EXPECT_EQ(value("sluice_placement_bytes{kind=kv,tier=disk"), 30);
  // Nothing is placed once the stage is gone.
  v1::CoordinatorMessage retire;
  retire.mutable_retire()->set_epoch(2);
  coordinator_.Send("w0", retire);
  workers_[0]->worker().Shutdown();
  EXPECT_EQ(workers_[0]->worker().report().placement.weight_bytes, 0u);
  EXPECT_EQ(workers_[0]->worker().report().stats.disk_read_bytes, 500u);
  EXPECT_EQ(value("sluice_placement_bytes{kind=weights,tier=host"), 0);
}

TEST_F(WorkerChainTest, NewerAssignmentCancelsALoad) {
  StartWorkers(1);
  workers_[0]->model().CloseLoadGate();
  coordinator_.Send("w0", Assignment(1, 0));
  workers_[0]->model().AwaitLoads(1);
  coordinator_.Send("w0", Assignment(2, 0));
  workers_[0]->model().AwaitLoads(2);
  EXPECT_EQ(workers_[0]->model().cancelled_loads(), 1);
  workers_[0]->model().OpenLoadGate();
  coordinator_.AwaitReady("w0", 2);
  ExpectStepWorks(2);
}

TEST_F(WorkerChainTest, StalePlansAndAssignmentsAreRefused) {
  StartWorkers(1);
  AssignAll(5);
  coordinator_.Send("w0", Step(4, 0, 0));  // dropped
  coordinator_.Send("w0", Assignment(5, 0));
  const v1::StageFailed failed = coordinator_.AwaitFailed("w0", 5);
  EXPECT_EQ(failed.code(),
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(failed.message(), HasSubstr("stale"));
  ExpectStepWorks(5);
  // A plan of an epoch that was never assigned can't be dropped in silence.
  coordinator_.Send("w0", Step(6, 0, 1));
  EXPECT_THAT(coordinator_.AwaitFailed("w0", 5).message(),
              HasSubstr("plan of epoch 6"));
}

TEST_F(WorkerChainTest, ImpossibleAssignments) {
  StartWorkers(2);
  const auto expect_refused = [&](const v1::CoordinatorMessage& assignment,
                                  const std::string& why) {
    coordinator_.Send("w0", assignment);
    const v1::StageFailed failed = coordinator_.AwaitFailed("w0", 1);
    EXPECT_EQ(failed.code(),
              static_cast<int>(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(failed.message(), HasSubstr(why));
  };
  v1::CoordinatorMessage bad = Assignment(1, 0);
  bad.mutable_assign_stage()->mutable_layers()->set_end(7);
  expect_refused(bad, "layers [0, 7)");
  bad = Assignment(1, 0);
  bad.mutable_assign_stage()->set_stage(2);
  expect_refused(bad, "stage 2 of 2");
  bad = Assignment(1, 0);
  bad.mutable_assign_stage()->clear_next_link_address();
  expect_refused(bad, "next_link_address");
  bad = Assignment(1, 0);
  bad.mutable_assign_stage()->set_max_sequences(0);
  expect_refused(bad, "max_sequences 0");
  bad = Assignment(1, 0);
  bad.mutable_assign_stage()->mutable_policy()->set_gbs(0);
  expect_refused(bad, "gbs 0");
}

TEST_F(WorkerChainTest, FailedLoadIsReported) {
  StartWorkers(1);
  workers_[0]->model().FailLoads(
      absl::ResourceExhaustedError("weights need 9 GiB"));
  coordinator_.Send("w0", Assignment(1, 0));
  const v1::StageFailed failed = coordinator_.AwaitFailed("w0", 1);
  EXPECT_EQ(failed.code(),
            static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(failed.message(),
            "stage 0 of 1 (layers 0 to 5): can't load: weights need 9 GiB");
  EXPECT_FALSE(workers_[0]->worker().ready());
  workers_[0]->model().FailLoads(absl::OkStatus());
  AssignAll(2);
  ExpectStepWorks(2);
}

TEST_F(WorkerChainTest, FailedStepEndsTheEpochOnAllStages) {
  StartWorkers(3);
  AssignAll(1);
  ExpectStepWorks(1);
  workers_[1]->model().FailSteps(absl::ResourceExhaustedError("no page left"));
  coordinator_.Send("w0", Step(1, 3, 7));
  const v1::StageFailed failed = coordinator_.AwaitFailed("w1", 1);
  EXPECT_EQ(failed.code(),
            static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(failed.message(),
            "stage 1 of 3 (layers 2 to 3): block 3 step 7: no page left");
  // The stage before learns why its link ended, at the latest when it sends.
  coordinator_.Send("w0", Step(1, 0, 1));
  EXPECT_THAT(coordinator_.AwaitFailed("w0", 1).message(),
              HasSubstr("no page left"));
  workers_[1]->model().FailSteps(absl::OkStatus());
  AssignAll(2);
  ExpectStepWorks(2);
}

TEST_F(WorkerChainTest, DamagedWeightsAreLoadedAgain) {
  StartWorkers(1);
  AssignAll(1);
  workers_[0]->model().FailSteps(absl::DataLossError("an image is damaged"));
  coordinator_.Send("w0", Step(1, 0, 0));
  EXPECT_EQ(coordinator_.AwaitFailed("w0", 1).code(),
            static_cast<int>(absl::StatusCode::kDataLoss));
  workers_[0]->model().FailSteps(absl::OkStatus());
  AssignAll(2);
  EXPECT_EQ(workers_[0]->model().loads(), 2);
  ExpectStepWorks(2);
}

TEST_F(WorkerChainTest, AWorkerWhoseDeviceIsLostLeavesForGood) {
  StartWorkers(2);
  AssignAll(1);
  ExpectStepWorks(1);
  EXPECT_TRUE(workers_[1]->worker().health().ok());
  workers_[1]->model().FailSteps(
      DeviceLoss(absl::InternalError("GPU 0: gone")));
  coordinator_.Send("w0", Step(1, 3, 7));
  const v1::StageFailed failed = coordinator_.AwaitFailed("w1", 1);
  EXPECT_EQ(failed.code(), static_cast<int>(absl::StatusCode::kInternal));
  EXPECT_EQ(failed.message(),
            "stage 1 of 2 (layers 3 to 5): block 3 step 7: GPU 0: gone");
  coordinator_.AwaitDetached("w1");
  EXPECT_FALSE(workers_[1]->worker().ready());
  EXPECT_EQ(workers_[1]->worker().health().message(),
            "stage 1 of 2 (layers 3 to 5): block 3 step 7: GPU 0: gone");
  EXPECT_EQ(workers_[1]->model().live_executors(), 0)
      << "nothing is left of the stage";
  // The other worker is healthy, and goes on with a replacement.
  EXPECT_TRUE(workers_[0]->worker().health().ok());
  workers_.push_back(
      std::make_unique<TestWorker>("w2", coordinator_.address()));
  coordinator_.AwaitAttached("w2");
  std::swap(workers_[1], workers_[2]);
  workers_.pop_back();
  AssignAll(2);
  ExpectStepWorks(2);
}

TEST_F(WorkerChainTest, ADeviceThatIsLostWhileLoadingIsTheEnd) {
  StartWorkers(1);
  workers_[0]->model().FailLoads(DeviceLoss(absl::InternalError("ECC")));
  coordinator_.Send("w0", Assignment(1, 0));
  EXPECT_EQ(coordinator_.AwaitFailed("w0", 1).message(),
            "stage 0 of 1 (layers 0 to 5): can't load: ECC");
  coordinator_.AwaitDetached("w0");
  EXPECT_TRUE(IsDeviceLoss(workers_[0]->worker().health()));
}

TEST_F(WorkerChainTest, RepeatedStepsAreRefused) {
  StartWorkers(1);
  AssignAll(1);
  ExpectStepWorks(1, 0, 3);
  coordinator_.Send("w0", Step(1, 0, 3));
  const v1::StageFailed failed = coordinator_.AwaitFailed("w0", 1);
  EXPECT_EQ(failed.code(),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(failed.message(), HasSubstr("repeated or out of order"));
}

TEST_F(WorkerChainTest, UnreadablePlanEndsTheEpoch) {
  StartWorkers(1);
  AssignAll(1);
  v1::CoordinatorMessage bad = Step(1, 0, 0);
  bad.mutable_step_plan()->mutable_micro_batches(0)->add_tokens(1);
  coordinator_.Send("w0", bad);
  EXPECT_EQ(coordinator_.AwaitFailed("w0", 1).code(),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
}

TEST_F(WorkerChainTest, NextStageThatDiesMidStream) {
  StartWorkers(2);
  AssignAll(1);
  ExpectStepWorks(1);
  workers_[1]->model().CloseStepGate();
  for (int step = 1; step < 20; ++step) {
    coordinator_.Send("w0", Step(1, 0, step));
  }
  workers_[1]->model().AwaitSteps(2);
  workers_[1]->KillServer();
  const v1::StageFailed failed = coordinator_.AwaitFailed("w0", 1);
  EXPECT_EQ(failed.code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_THAT(failed.message(), HasSubstr("stage 0 of 2 (layers 0 to 2): "));
  EXPECT_THAT(failed.message(), HasSubstr(workers_[1]->address()));
  // The other side of the link notices, too.
  EXPECT_EQ(coordinator_.AwaitFailed("w1", 1).code(),
            static_cast<int>(absl::StatusCode::kUnavailable));
  workers_[1]->model().OpenStepGate();
}

TEST_F(WorkerChainTest, NextStageThatIsNotThere) {
  StartWorkers(2);
  v1::CoordinatorMessage assignment = Assignment(1, 0);
  assignment.mutable_assign_stage()->set_next_link_address("127.0.0.1:9");
  coordinator_.Send("w0", assignment);
  workers_[0]->model().AwaitLoads(1);
  // It keeps trying until it gets another assignment.
  AssignAll(2);
  ExpectStepWorks(2);
}

TEST_F(WorkerChainTest, APreparedStageIsTakenOverWithoutLoadingAgain) {
  StartWorkers(2);
  for (int stage = 0; stage < 2; ++stage) {
    v1::CoordinatorMessage prepare = Assignment(7, stage);
    prepare.mutable_assign_stage()->set_prepare(true);
    coordinator_.Send(workers_[stage]->name(), prepare);
    const v1::StageReady ready =
        coordinator_.AwaitReady(workers_[stage]->name(), 7);
    EXPECT_EQ(ready.kv_pages(), 100);
  }
  // The prepared stage is not active yet.
  coordinator_.Send("w0", Step(7, 0, 0));
  EXPECT_THAT(coordinator_.AwaitFailed("w0", 7).message(),
              HasSubstr("only being prepared"));
  AssignAll(7);
  ExpectStepWorks(7);
  for (const auto& worker : workers_) {
    EXPECT_EQ(worker->model().loads(), 1);
  }
  // A running stage can't be prepared.
  v1::CoordinatorMessage late = Assignment(7, 0);
  late.mutable_assign_stage()->set_prepare(true);
  coordinator_.Send("w0", late);
  EXPECT_THAT(coordinator_.AwaitFailed("w0", 7).message(), HasSubstr("stale"));
  ExpectStepWorks(7, 0, 1);
}

TEST_F(WorkerChainTest, APreparationThatIsNotWantedAnyMoreIsCancelled) {
  StartWorkers(1);
  workers_[0]->model().CloseLoadGate();
  v1::CoordinatorMessage prepare = Assignment(2, 0);
  prepare.mutable_assign_stage()->set_prepare(true);
  coordinator_.Send("w0", prepare);
  workers_[0]->model().AwaitLoads(1);
  v1::CoordinatorMessage retire;
  retire.mutable_retire()->set_epoch(2);
  coordinator_.Send("w0", retire);
  coordinator_.Send("w0", Assignment(3, 0));
  workers_[0]->model().AwaitLoads(2);
  EXPECT_EQ(workers_[0]->model().cancelled_loads(), 1);
  workers_[0]->model().OpenLoadGate();
  coordinator_.AwaitReady("w0", 3);
}

TEST_F(WorkerChainTest, SaysWhatItsStageIsAt) {
  using Activity = v1::Activity;
  const auto at = [this](const char* name, Activity::Kind kind,
                         int64_t step_out) {
    return coordinator_
        .AwaitHeartbeat(name,
                        [&](const v1::Heartbeat& h) {
                          return h.activity().kind() == kind &&
                                 h.activity().last_step_out() == step_out;
                        })
        .activity();
  };
  StartWorkers(2);
  at("w0", Activity::KIND_NONE, 0);
  workers_[1]->model().CloseLoadGate();
  coordinator_.Send("w0", Assignment(3, 0));
  coordinator_.Send("w1", Assignment(3, 1));
  const Activity loading = at("w1", Activity::KIND_LOADING, 0);
  EXPECT_EQ(loading.epoch(), 3);
  coordinator_.AwaitReady("w0", 3);
  at("w0", Activity::KIND_WAITING, 0);
  workers_[1]->model().OpenLoadGate();
  coordinator_.AwaitReady("w1", 3);
  EXPECT_GT(at("w1", Activity::KIND_WAITING, 0).marks(), loading.marks());
  // The last stage hangs in a step: the first one has handed it on, and can do
  // so until nothing is taken any more.
  workers_[1]->model().CloseStepGate();
  coordinator_.Send("w0", Step(3, 0, 0));
  coordinator_.Send("w0", Step(3, 0, 1));
  const Activity hung = at("w1", Activity::KIND_COMPUTING, 0);
  at("w0", Activity::KIND_WAITING, 1);
  for (int step = 2; step < 20; ++step) {
    coordinator_.Send("w0", Step(3, 0, step));
  }
  const Activity blocked = coordinator_
                               .AwaitHeartbeat("w0",
                                               [](const v1::Heartbeat& h) {
                                                 return h.activity().kind() ==
                                                        Activity::KIND_BLOCKED;
                                               })
                               .activity();
  EXPECT_LT(blocked.last_step_out(), 19);
  EXPECT_EQ(at("w1", Activity::KIND_COMPUTING, 0).marks(), hung.marks());
  workers_[1]->model().OpenStepGate();
  at("w1", Activity::KIND_WAITING, 19);
  at("w0", Activity::KIND_WAITING, 19);
}

TEST_F(WorkerChainTest, SaysWhichLinksItCanOpen) {
  StartWorkers(2);
  v1::CoordinatorMessage question;
  v1::ReachLinks* reach = question.mutable_reach_links();
  reach->set_epoch(5);
  const std::pair<const char*, std::string> peers[] = {
      {"w1", workers_[1]->address()}, {"nobody", "127.0.0.1:1"}};
  for (const auto& [name, address] : peers) {
    reach->add_peers()->set_name(name);
    reach->mutable_peers()->rbegin()->set_link_address(address);
  }
  coordinator_.Send("w0", question);
  const v1::LinksReached answer =
      coordinator_
          .Await("w0", [](const auto& m) { return m.has_links_reached(); })
          .links_reached();
  EXPECT_EQ(answer.epoch(), 5);
  ASSERT_EQ(answer.links_size(), 2);
  EXPECT_EQ(answer.links(0).peer(), "w1");
  EXPECT_EQ(answer.links(0).error(), "");
  EXPECT_THAT(answer.links(1).error(), HasSubstr("127.0.0.1:1"));
}

TEST_F(WorkerChainTest, LosesItsCoordinatorAndKeepsItsWeights) {
  StartWorkers(2);
  AssignAll(7);
  ExpectStepWorks(7);
  coordinator_.Drop();
  coordinator_.AwaitAttached("w0", 2);
  coordinator_.AwaitAttached("w1", 2);
  // A coordinator that has restarted counts epochs from one.
  AssignAll(1);
  ExpectStepWorks(1);
  EXPECT_EQ(workers_[0]->model().loads(), 1);
  EXPECT_EQ(workers_[1]->model().loads(), 1);
}

// Results of an epoch of the former coordinator are not sent to the next one.
TEST_F(WorkerChainTest, ResultsOfALostCoordinatorAreDropped) {
  StartWorkers(1);
  AssignAll(1);
  workers_[0]->model().CloseStepGate();
  coordinator_.Send("w0", Step(1, 0, 5));
  workers_[0]->model().AwaitSteps(1);
  coordinator_.Drop();
  coordinator_.AwaitAttached("w0", 2);
  coordinator_.Send("w0", Assignment(1, 0));
  workers_[0]->model().OpenStepGate();
  coordinator_.AwaitReady("w0", 1);
  ExpectStepWorks(1, 0, 6);
}

TEST_F(WorkerChainTest, RefusedRegistrationIsTriedAgain) {
  coordinator_.Refuse(grpc::Status(grpc::StatusCode::ALREADY_EXISTS,
                                   "a worker of this name is registered"));
  workers_.push_back(
      std::make_unique<TestWorker>("w0", coordinator_.address()));
  coordinator_.AwaitRefusals(3);
  EXPECT_FALSE(workers_[0]->worker().ready());
  coordinator_.Refuse(grpc::Status::OK);
  coordinator_.AwaitAttached("w0");
  AssignAll(1);
}

TEST_F(WorkerChainTest, RetiredWorkerDropsItsWeightsAndWaits) {
  StartWorkers(1);
  AssignAll(1);
  ExpectStepWorks(1);
  v1::CoordinatorMessage retire;
  retire.mutable_retire()->set_epoch(2);
  coordinator_.Send("w0", retire);
  coordinator_.Send("w0", Assignment(3, 0));
  coordinator_.AwaitReady("w0", 3);
  EXPECT_EQ(workers_[0]->model().loads(), 2);
  EXPECT_EQ(workers_[0]->model().live_executors(), 1);
}

TEST_F(WorkerChainTest, ShutdownInTheMiddleOfEverything) {
  StartWorkers(3);
  AssignAll(1);
  workers_[2]->model().CloseStepGate();
  for (int step = 0; step < 50; ++step) {
    coordinator_.Send("w0", Step(1, 0, step));
  }
  workers_[2]->model().AwaitSteps(1);
  workers_[2]->model().OpenStepGate();
  workers_.erase(workers_.begin() + 1);
  coordinator_.AwaitDetached("w1");
  workers_.clear();
  coordinator_.AwaitDetached("w0");
  coordinator_.AwaitDetached("w2");
}

TEST_F(WorkerChainTest, WithoutACoordinatorItKeepsTrying) {
  TestWorker worker("lonely", "127.0.0.1:9");
  EXPECT_FALSE(worker.worker().ready());
}

// The same with frames beside gRPC.
class TcpChainTest : public WorkerChainTest {
 protected:
  TcpChainTest() { link_ = v1::LINK_TRANSPORT_TCP; }
};

TEST_F(TcpChainTest, RegistersWhatItsLinksMayGoBy) {
  StartWorkers(1);
  EXPECT_THAT(coordinator_.AwaitAttached("w0").link_transports(),
              ElementsAre(v1::LINK_TRANSPORT_GRPC, v1::LINK_TRANSPORT_TCP));
  for (const auto& [choice, transport] :
       {std::pair(LinkChoice::kGrpc, v1::LINK_TRANSPORT_GRPC),
        std::pair(LinkChoice::kTcp, v1::LINK_TRANSPORT_TCP)}) {
    const std::string name = absl::StrCat("w", workers_.size());
    const LinkChoice chosen = choice;
    workers_.push_back(std::make_unique<TestWorker>(
        name, coordinator_.address(), nullptr,
        [chosen](Worker::Options* o) { o->links.choice = chosen; }));
    EXPECT_THAT(coordinator_.AwaitAttached(name).link_transports(),
                ElementsAre(transport));
  }
}

TEST_F(TcpChainTest, ThreeStagesKeepOrderWithBlocksInFlight) {
  StartWorkers(3);
  AssignAll(1);
  ExpectStepsInOrder(/*steps=*/20, /*blocks=*/3);
  EXPECT_EQ(LinkBytes(0, "sent"), LinkBytes(1, "received"));
  EXPECT_EQ(LinkBytes(1, "sent"), LinkBytes(2, "received"));
}

TEST_F(TcpChainTest, NewEpochsReplaceOldOnes) {
  StartWorkers(3);
  for (int64_t epoch = 1; epoch <= 6; ++epoch) {
    AssignAll(epoch, /*first_stage_first=*/epoch % 2 == 0);
    // Other steps of the old epoch in flight are forgotten.
    for (int step = 0; step < 5; ++step) {
      coordinator_.Send("w0", Step(epoch, 0, step));
    }
    ExpectResult(coordinator_.AwaitResult("w2"), epoch, 0, 0);
  }
}

TEST_F(TcpChainTest, NextStageThatDiesMidStream) {
  StartWorkers(3);
  AssignAll(1);
  ExpectStepWorks(1);
  workers_[1]->KillServer();
  for (int step = 1; step < 20; ++step) {
    coordinator_.Send("w0", Step(1, 0, step));
  }
  EXPECT_EQ(coordinator_.AwaitFailed("w0", 1).code(),
            static_cast<int>(absl::StatusCode::kUnavailable));
}

// A plan by TCP for a worker that has none, as of another coordinator.
TEST_F(TcpChainTest, WorkerThatHasNoTcp) {
  for (int i = 0; i < 2; ++i) {
    workers_.push_back(std::make_unique<TestWorker>(
        absl::StrCat("w", i), coordinator_.address(), nullptr,
        [](Worker::Options* o) { o->links.choice = LinkChoice::kGrpc; }));
    coordinator_.AwaitAttached(workers_[i]->name());
  }
  coordinator_.Send("w0", Assignment(1, 0));
  EXPECT_THAT(coordinator_.AwaitFailed("w0", 1).message(),
              HasSubstr("travel by tcp, which this worker has not"));
}

}  // namespace
}  // namespace sluice
