// A dispatcher with several pipelines, behind a real gRPC server in this
// process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/threads/bounded_queue.h"
#include "coordinator/dispatch/dispatcher.h"
#include "tests/integration/coordinator/dispatch_fake_worker.h"
#include "tests/integration/coordinator/dispatch_fixture.h"
#include "tests/unit/coordinator/dispatch/dispatch_testing.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class ReplicasTest : public DispatcherFixture {
 protected:
  ReplicasTest() { options_.cluster.replicas = 2; }

  ~ReplicasTest() override {
    Stop();
    workers_.clear();
    for (const FakePipeline& pipeline : pipelines_) {
      EXPECT_THAT(pipeline.violations(), IsEmpty());
    }
  }

  // Starts with pipelines whose stages have so many KV pages of 8 tokens.
  void Start(const std::vector<int64_t>& kv_pages = {64, 64}) {
    for (const int64_t pages : kv_pages) {
      pipelines_.emplace_back(model_, pages, 8);
    }
    Listen();
  }

  // Workers are dealt out by name: "a" and "b" to pipeline 0, and so on.
  std::shared_ptr<FakeWorker> AddWorker(const std::string& name,
                                        size_t pipeline) {
    return Attach(name, &pipelines_[pipeline]);
  }

  std::vector<Request> AddRequests(int count, uint64_t seed,
                                   int max_prompt = 40) {
    std::mt19937_64 random(seed);
    std::vector<Request> requests;
    for (int i = 0; i < count; ++i) {
      Request request = MakeRequest(
          1, i, std::string(1 + random() % max_prompt, 'a' + random() % 4),
          1 + static_cast<int32_t>(random() % 30));
      if (random() % 4 == 0) request.stop = {"abc", "dd"};
      requests.push_back(std::move(request));
    }
    queue_.Add(requests);
    dispatcher_->NotifyWork();
    return requests;
  }

  void ExpectResults(const std::vector<Request>& requests) {
    const auto results = queue_.results();
    EXPECT_EQ(queue_.doubled(), 0);
    EXPECT_EQ(results.size(), requests.size());
    for (const Request& request : requests) {
      const auto it = results.find({request.job.value(), request.index});
      ASSERT_NE(it, results.end()) << request.index;
      const Generation& got = it->second;
      const Expected want = Simulate(request, model_);
      ASSERT_TRUE(got.status.ok()) << got.status;
      ASSERT_EQ(got.tokens, want.tokens) << request.index;
      ASSERT_EQ(got.text, want.text) << request.index;
    }
  }

  v1::PipelineInfo Pipeline(int p) {
    const v1::ClusterState state = dispatcher_->cluster_state();
    return p < state.pipelines_size() ? state.pipelines(p) : v1::PipelineInfo();
  }
  void WaitFor(const std::function<bool()>& condition) {
    while (!condition()) absl::SleepFor(absl::Milliseconds(1));
  }
  void WaitForRunning(int p) {
    WaitFor([&] {
      const std::string state = Pipeline(p).state();
      return state == "idle" || state == "running";
    });
  }

  const Model model_ = HashModel(1000);
  std::deque<FakePipeline> pipelines_;
};

TEST_F(ReplicasTest, PipelinesShareTheRequests) {
  options_.cluster.min_workers = 4;
  Start();
  const std::vector<Request> requests = AddRequests(300, 1);
  AddWorker("a", 0);
  AddWorker("c", 1);
  AddWorker("b", 0);
  queue_.WaitForDetail("waiting for workers: 3 of 4 registered");
  AddWorker("d", 1);
  queue_.WaitForResults(300);
  ExpectResults(requests);
  EXPECT_GT(pipelines_[0].steps(), 0);
  EXPECT_GT(pipelines_[1].steps(), 0);
  WaitForRunning(0);
  WaitForRunning(1);
  const v1::ClusterState state = dispatcher_->cluster_state();
  ASSERT_EQ(state.pipelines_size(), 2);
  EXPECT_EQ(state.pipelines(0).num_stages(), 2);
  EXPECT_EQ(state.pipelines(1).num_stages(), 2);
  EXPECT_EQ(state.num_blocks(), 4);
  for (const v1::WorkerInfo& worker : state.workers()) {
    EXPECT_EQ(worker.pipeline(), worker.name() < "c" ? 0 : 1) << worker.name();
  }
}

// Each of many documents has questions: they go where the document is.
TEST_F(ReplicasTest, RequestsGoWhereOthersBeginLikeThem) {
  options_.cluster.min_workers = 2;
  Start();
  std::vector<Request> requests;
  for (int i = 0; i < 400; ++i) {
    const int document = i % 5;
    requests.push_back(MakeRequest(
        1, i,
        absl::StrCat(std::string(64, static_cast<char>('a' + document)), i),
        5));
  }
  queue_.Add(requests);
  AddWorker("a", 0);
  AddWorker("b", 1);
  dispatcher_->NotifyWork();
  queue_.WaitForResults(400);
  ExpectResults(requests);
  int64_t shared = 0;
  for (const FakePipeline& pipeline : pipelines_) {
    EXPECT_GT(pipeline.steps(), 0);
    shared += pipeline.shared_positions();
  }
  EXPECT_GT(shared, 400 * 64 / 2);
}

TEST_F(ReplicasTest, ADeathMovesRequestsAndLeavesTheOtherPipelineAlone) {
  options_.cluster.min_workers = 4;
  Start();
  auto a = AddWorker("a", 0);
  AddWorker("b", 0);
  AddWorker("c", 1);
  AddWorker("d", 1);
  WaitForRunning(0);
  WaitForRunning(1);
  const int64_t epoch = Pipeline(1).epoch();
  pipelines_[0].SetOnStep([&](int64_t step) {
    if (step == 10) a->Kill();
  });
  const std::vector<Request> requests = AddRequests(200, 2);
  // Without "a" the first pipeline has one worker of its two.
  queue_.WaitForResults(200);
  ExpectResults(requests);
  EXPECT_GT(queue_.replays(), 0);
  EXPECT_TRUE(dispatcher_->ready());
  EXPECT_EQ(Pipeline(1).epoch(), epoch);
  EXPECT_THAT(Pipeline(0).state(), HasSubstr("1 of 2 in the pipeline"));
  // The worker comes back, to its own pipeline.
  AddWorker("a", 0);
  WaitForRunning(0);
  EXPECT_EQ(Pipeline(1).epoch(), epoch);
  EXPECT_GT(Pipeline(0).epoch(), epoch);
  Stop();
}

TEST_F(ReplicasTest, APipelineGoesOnWithFewerWorkers) {
  options_.cluster.min_workers = 2;
  Start();
  AddWorker("a", 0);
  AddWorker("c", 1);
  WaitForRunning(0);
  WaitForRunning(1);
  // Who comes later joins the smallest pipeline.
  auto b = AddWorker("b", 0);
  WaitFor([&] { return Pipeline(0).num_stages() == 2; });
  WaitForRunning(0);
  const int64_t epoch = Pipeline(1).epoch();
  const int64_t steps = pipelines_[0].steps();
  pipelines_[0].SetOnStep([&, steps](int64_t step) {
    if (step == steps + 10) b->Kill();
  });
  const std::vector<Request> requests = AddRequests(200, 3);
  queue_.WaitForResults(200);
  WaitFor([&] { return Pipeline(0).num_stages() == 1; });
  WaitForRunning(0);
  ExpectResults(requests);
  EXPECT_EQ(Pipeline(1).epoch(), epoch);
  Stop();
}

TEST_F(ReplicasTest, WhatIsTooLongForOnePipelineGoesToAnother) {
  options_.cluster.min_workers = 2;
  Start({3, 64});  // 24 tokens, and 512
  AddWorker("a", 0);
  AddWorker("b", 1);
  const std::vector<Request> requests = AddRequests(100, 4, 100);
  queue_.WaitForResults(100);
  ExpectResults(requests);
}

TEST_F(ReplicasTest, WhatFitsNoPipelineEndsWithAnError) {
  options_.cluster.min_workers = 2;
  Start({3, 3});
  AddWorker("a", 0);
  AddWorker("b", 1);
  WaitForRunning(0);
  WaitForRunning(1);
  queue_.Add({MakeRequest(1, 0, std::string(30, 'a'), 5)});
  dispatcher_->NotifyWork();
  queue_.WaitForResults(1);
  const Generation got = queue_.results().begin()->second;
  EXPECT_TRUE(absl::IsResourceExhausted(got.status)) << got.status;
}

// Pipeline 1, which alone has room for a prompt of 30, is lost and comes back.
TEST_F(ReplicasTest, WhatFitsOnlyALostPipelineWaitsForIt) {
  options_.cluster.min_workers = 2;
  Start({3, 64});
  AddWorker("a", 0);
  auto b = AddWorker("b", 1);
  WaitForRunning(0);
  WaitForRunning(1);
  b->Kill();
  WaitFor([&] { return dispatcher_->cluster_state().pipelines_size() == 1; });
  std::vector<Request> requests = {MakeRequest(2, 0, std::string(30, 'a'), 5)};
  queue_.Add(requests);
  dispatcher_->NotifyWork();
  queue_.WaitForDetail(
      "1 request waits for pipeline 1, being longer than the KV cache of the "
      "others holds: waiting for workers: 1 registered, 0 of 1 in the "
      "pipeline; worker 'b' was lost");
  // What fits into pipeline 0 goes on there.
  const std::vector<Request> others = AddRequests(50, 7, 10);
  WaitFor([&] {
    const v1::ClusterState state = dispatcher_->cluster_state();
    return queue_.results().size() > 0 && state.waiting() > 0;
  });
  EXPECT_FALSE(queue_.results().contains({2, 0}));
  AddWorker("b", 1);
  queue_.WaitForResults(51);
  requests.insert(requests.end(), others.begin(), others.end());
  ExpectResults(requests);
  queue_.WaitForReady();
  Stop();
}

TEST_F(ReplicasTest, WhatFitsOnlyAPipelineThatIsGivenUpEndsWithAnError) {
  options_.cluster.clock = &manual_clock_;
  options_.cluster.min_workers = 4;
  Start({3, 64});
  AddWorker("a", 0);
  AddWorker("b", 0);
  AddWorker("c", 1);
  auto d = AddWorker("d", 1);
  const auto tick = [&](const std::function<bool()>& condition) {
    WaitFor([&] {
      manual_clock_.Advance(absl::Milliseconds(2));
      return condition();
    });
  };
  tick([&] { return Pipeline(0).state() == "idle"; });
  tick([&] { return Pipeline(1).state() == "idle"; });
  d->Kill();
  tick([&] { return Pipeline(1).state() != "idle"; });
  queue_.Add({MakeRequest(1, 0, std::string(30, 'a'), 5)});
  dispatcher_->NotifyWork();
  tick([&] { return queue_.HasDetail("1 request waits for pipeline 1"); });
  EXPECT_THAT(Pipeline(1).state(), HasSubstr("1 of 2 in the pipeline"));
  EXPECT_TRUE(queue_.results().empty());
  manual_clock_.Advance(WorkerTimeouts::kLostKept);
  queue_.WaitForResults(1);
  const Generation got = queue_.results().begin()->second;
  EXPECT_TRUE(absl::IsResourceExhausted(got.status)) << got.status;
  EXPECT_THAT(got.status.message(), HasSubstr("needs room for 35 tokens"));
  Stop();
}

// A pipeline that stands still keeps what it computes, but not what waits.
TEST_F(ReplicasTest, TheLastRequestsWaitForNobody) {
  options_.cluster.min_workers = 2;
  options_.min_window = 64;
  BoundedQueue<int> gate(1000);
  Start();
  pipelines_[0].SetOnStep([&](int64_t) { gate.Pop(); });
  AddWorker("a", 0);
  AddWorker("b", 1);
  WaitForRunning(0);
  WaitForRunning(1);
  const std::vector<Request> requests = AddRequests(100, 5);
  // All but those in the block that stands still, and at most one that waits.
  queue_.WaitForResults(100 - 4 - 1);
  gate.Close();
  queue_.WaitForResults(100);
  ExpectResults(requests);
  Stop();
}

TEST_F(ReplicasTest, CancelsInAllPipelines) {
  options_.cluster.min_workers = 2;
  BoundedQueue<int> gate(1000);
  Start();
  for (FakePipeline& pipeline : pipelines_) {
    pipeline.SetOnStep([&](int64_t) { gate.Pop(); });
  }
  AddWorker("a", 0);
  AddWorker("b", 1);
  WaitForRunning(0);
  WaitForRunning(1);
  AddRequests(12, 6);
  WaitFor(
      [&] { return Pipeline(0).running() > 0 && Pipeline(1).running() > 0; });
  dispatcher_->Cancel(JobId(1));
  queue_.WaitForResults(12);
  EXPECT_EQ(queue_.doubled(), 0);
  gate.Close();
  Stop();
}

}  // namespace
}  // namespace sluice
