#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "common/threads/bounded_queue.h"
#include "coordinator/dispatch/dispatcher.h"
#include "tests/integration/coordinator/dispatch_fake_worker.h"
#include "tests/integration/coordinator/dispatch_fixture.h"
#include "tests/unit/coordinator/dispatch/dispatch_testing.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DispatcherTest : public DispatcherFixture {
 protected:
  ~DispatcherTest() override {
    Stop();
    workers_.clear();
    if (pipeline_) {
      EXPECT_THAT(pipeline_->violations(), IsEmpty());
    }
  }

  void Start(Model model, int64_t kv_pages = 64, int32_t page_tokens = 8,
             bool kv_by_need = true) {
    model_ = model;
    pipeline_.emplace(std::move(model), kv_pages, page_tokens, kv_by_need);
    Listen();
  }

  std::shared_ptr<FakeWorker> AddWorker(const std::string& name) {
    return Attach(name, &*pipeline_);
  }

  // Makes random requests of all kinds and adds each to the queue.
  std::vector<Request> AddRequests(int64_t job, int count, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<Request> requests;
    for (int i = 0; i < count; ++i) {
      Request request = MakeRequest(
          job, i, std::string(1 + random() % 40, 'a' + random() % 4),
          1 + static_cast<int32_t>(random() % 30));
      if (random() % 4 == 0) request.stop = {"abc", "dd"};
      request.ignore_eos = random() % 5 == 0;
      if (random() % 4 == 0) {
        request.echo = true;
        request.sampling.logprobs = static_cast<int32_t>(random() % 4);
        if (random() % 2 == 0) request.max_tokens = 0;
      }
      requests.push_back(std::move(request));
    }
    queue_.Add(requests);
    dispatcher_->NotifyWork();
    return requests;
  }

  void ExpectResults(const std::vector<Request>& requests) {
    const auto results = queue_.results();
    EXPECT_EQ(queue_.doubled(), 0);
    for (const Request& request : requests) {
      const auto it = results.find({request.job.value(), request.index});
      ASSERT_NE(it, results.end()) << request.index;
      const Generation& got = it->second;
      const Expected want = Simulate(request, model_);
      ASSERT_TRUE(got.status.ok()) << got.status;
      ASSERT_EQ(got.tokens, want.tokens) << request.index;
      ASSERT_EQ(got.text, want.text) << request.index;
      ASSERT_EQ(got.generated, want.generated) << request.index;
      ASSERT_EQ(got.finish_reason, want.finish_reason) << request.index;
      ExpectScores(request, got);
    }
  }

  static void ExpectScores(const Request& request, const Generation& got) {
    const TokenScores& scores = got.prompt_scores;
    if (!request.scores_prompt()) {
      ASSERT_THAT(scores.logprobs, IsEmpty());
      return;
    }
    ASSERT_EQ(scores.logprobs.size(), request.prompt.size() - 1);
    ASSERT_EQ(scores.num_top, request.sampling.logprobs);
    ASSERT_EQ(scores.top.size(), scores.logprobs.size() * scores.num_top);
    for (size_t i = 0; i < scores.logprobs.size(); ++i) {
      const auto known = std::span(request.prompt).first(i + 2);
      ASSERT_EQ(scores.logprobs[i], FakeLogprob(known));
      for (int32_t rank = 0; rank < scores.num_top; ++rank) {
        const TokenLogprob& top = scores.top[i * scores.num_top + rank];
        ASSERT_EQ(top.token, FakeAlternative(known, rank).token);
        ASSERT_EQ(top.logprob, FakeAlternative(known, rank).logprob);
      }
    }
  }

  Model model_;
  std::optional<FakePipeline> pipeline_;
};

TEST_F(DispatcherTest, GeneratesEachRequestOnce) {
  Start(HashModel(40));
  const std::vector<Request> requests = AddRequests(1, 200, 1);
  AddWorker("a");
  queue_.WaitForResults(200);
  ExpectResults(requests);
  queue_.WaitForReady();
}

TEST_F(DispatcherTest, ScoresPrompts) {
  options_.cluster.num_blocks = 2;
  Start(HashModel(40), /*kv_pages=*/400);
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) {
    // Prompts are of one token, of many steps, and of all sizes between.
    requests.push_back(MakeRequest(
        1, i, std::string(1 + i * i % 397, 'a' + i % 5), i % 3 == 0 ? 0 : i));
    requests.back().echo = true;
    requests.back().sampling.logprobs = i % 6;
  }
  queue_.Add(requests);
  dispatcher_->NotifyWork();
  AddWorker("a");
  queue_.WaitForResults(40);
  ExpectResults(requests);
}

// Scores of long prompts are large, and the queue may be slow: the waiting
// results must not grow with the job.
TEST_F(DispatcherTest, ASlowQueueHoldsUpTheComputing) {
  class SlowQueue : public MemoryQueue {
   public:
    ~SlowQueue() override {
      gate.Close();
      completed_.Close();
    }
    void Complete(Request request, Generation generation) override {
      FinishedRequest finished = {std::move(request), std::move(generation)};
      bytes_ += MemoryBytes(finished);
      completed_.Push(std::move(finished));
    }
    Backlog backlog() const override { return {0, bytes_}; }
    BoundedQueue<int> gate{1000};

   private:
    std::atomic<int64_t> bytes_ = 0;
    BoundedQueue<FinishedRequest> completed_{1000};
    Thread writer_{"writer", [this] {
                     while (auto finished = completed_.Pop()) {
                       gate.Pop();
                       const int64_t bytes = MemoryBytes(*finished);
                       MemoryQueue::Complete(std::move(finished->request),
                                             std::move(finished->generation));
                       bytes_ -= bytes;
                     }
                   }};
  } queue;
  options_.queue = &queue;
  options_.max_unwritten_bytes = 20'000;
  options_.cluster.policy.max_step_tokens = 200;
  Start(HashModel(40));
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) {  // each result takes 8 KB
    requests.push_back(MakeRequest(1, i, std::string(50, 'a'), 0));
    requests.back().echo = true;
    requests.back().sampling.logprobs = 20;
  }
  queue.Add(requests);
  dispatcher_->NotifyWork();
  AddWorker("a");
  queue.gate.Push(0);
  queue.WaitForResults(1);
  queue.gate.Push(0);
  queue.WaitForResults(2);
  // Two are written. A step gives four, and does not begin if more than two
  // wait.
  EXPECT_LE(pipeline_->steps(), 2);
  queue.gate.Close();
  queue.WaitForResults(40);
  EXPECT_EQ(queue.doubled(), 0);
  Stop();
}

TEST_F(DispatcherTest, KeepsABlockInFlightPerStage) {
  options_.cluster.min_workers = 3;
  Start(HashModel(40));
  const std::vector<Request> requests = AddRequests(1, 200, 2);
  AddWorker("a");
  AddWorker("b");
  queue_.WaitForDetail("waiting for workers: 2 of 3 registered");
  EXPECT_FALSE(dispatcher_->ready());
  EXPECT_EQ(dispatcher_->cluster_state().state(),
            "waiting for workers: 2 of 3 registered");
  AddWorker("c");
  queue_.WaitForResults(200);
  ExpectResults(requests);
  EXPECT_THAT(pipeline_->blocks_seen(), ElementsAre(0, 1, 2));
  EXPECT_TRUE(dispatcher_->ready());
  const v1::ClusterState state = dispatcher_->cluster_state();
  EXPECT_EQ(state.epoch(), 1);
  EXPECT_EQ(state.num_blocks(), 3);
  EXPECT_EQ(state.workers_size(), 3);
}

// Pages for two sequences of the greatest length, and slots for many: no stage
// is ever asked for more pages than it has (the pipeline's violations).
class ScarcePagesTest : public DispatcherTest {
 protected:
  void Run(bool stages_by_need, bool by_need) {
    options_.kv_by_need = by_need;
    options_.cluster.policy.gbs = 16;
    options_.cluster.num_blocks = 3;
    Start(HashModel(40), 18, 8, stages_by_need);
    const std::vector<Request> requests = AddRequests(1, 200, 5);
    AddWorker("a");
    AddWorker("b");
    queue_.WaitForResults(200);
    ExpectResults(requests);
  }
};

TEST_F(ScarcePagesTest, TakenByNeed) { Run(true, true); }

TEST_F(ScarcePagesTest, ReservedByTheStages) { Run(false, true); }

TEST_F(ScarcePagesTest, ReservedByTheDispatcher) { Run(true, false); }

TEST_F(DispatcherTest, WithoutRefillTheTokensAreTheSame) {
  options_.refill = false;
  options_.cluster.policy.num_microbatches = 2;
  options_.cluster.num_blocks = 3;
  Start(HashModel(40));
  const std::vector<Request> requests = AddRequests(1, 200, 3);
  AddWorker("a");
  AddWorker("b");
  queue_.WaitForResults(200);
  ExpectResults(requests);
}

// Holds so many requests, and no more, while the first step is on its way.
class WindowTest : public DispatcherTest {
 protected:
  void ExpectToHold(size_t held) {
    options_.min_window = 1;
    BoundedQueue<int> gate(1000);
    Start(HashModel(1000));
    pipeline_->SetOnStep([&](int64_t) { gate.Pop(); });
    const std::vector<Request> requests = AddRequests(1, 100, 4);
    AddWorker("a");
    queue_.WaitForTaken(held);
    gate.Push(0);
    queue_.WaitForTokens(1);
    EXPECT_LE(queue_.taken(), held + queue_.results().size());
    gate.Close();
    queue_.WaitForResults(100);
    ExpectResults(requests);
    EXPECT_LE(queue_.largest_take(), 8);
    Stop();
  }
};

TEST_F(WindowTest, IsTwiceWhatRuns) { ExpectToHold(8); }

TEST_F(WindowTest, IsWiderToChooseTheLongestOf) {
  options_.order = Order::kLongest;
  options_.max_window = 60;
  ExpectToHold(60);
}

TEST_F(WindowTest, IsNoWiderForLongPrompts) {
  options_.order = Order::kLongest;
  options_.max_window_tokens = 1;
  ExpectToHold(8);
}

TEST_F(DispatcherTest, TakesWorkThatComesLater) {
  Start(HashModel(40));
  AddWorker("a");
  queue_.WaitForReady();
  std::vector<Request> all;
  for (int job = 1; job <= 5; ++job) {
    const std::vector<Request> requests = AddRequests(job, 20, job);
    all.insert(all.end(), requests.begin(), requests.end());
    queue_.WaitForResults(all.size());
  }
  ExpectResults(all);
}

TEST_F(DispatcherTest, AWorkersDeathPausesTheJob) {
  options_.cluster.min_workers = 2;
  Start(HashModel(1000));
  auto a = AddWorker("a");
  AddWorker("b");
  pipeline_->SetOnStep([&](int64_t step) {
    if (step == 20) a->Kill();
  });
  queue_.WaitForReady();
  const std::vector<Request> requests = AddRequests(1, 50, 5);
  queue_.WaitForDetail("waiting for workers: 1 of 2 registered");
  EXPECT_LT(queue_.results().size(), 50);
  pipeline_->SetOnStep(nullptr);
  AddWorker("c");
  queue_.WaitForResults(50);
  ExpectResults(requests);
  EXPECT_EQ(dispatcher_->cluster_state().epoch(), 2);
  EXPECT_GT(queue_.replays(), 0);
  Stop();
}

TEST_F(DispatcherTest, SurvivesRandomDeaths) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    // A new worker for each that dies.
    BoundedQueue<int> deaths(1000);
    options_.cluster.min_workers = 1 + static_cast<int32_t>(seed % 3);
    Start(HashModel(200));
    std::mt19937_64 random(seed);
    Mutex mu;
    std::vector<std::shared_ptr<FakeWorker>> alive;
    int64_t next_death = 10;
    int deaths_left = 12;
    pipeline_->SetOnStep([&](int64_t step) {
      MutexLock lock(&mu);
      if (step < next_death || alive.empty() || deaths_left == 0) return;
      --deaths_left;
      next_death = step + 5 + static_cast<int64_t>(random() % 30);
      const size_t victim = random() % alive.size();
      alive[victim]->Kill();
      alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(victim));
      deaths.Push(0);
    });
    const auto add = [&](const std::string& name) {
      auto worker = AddWorker(name);
      MutexLock lock(&mu);
      alive.push_back(worker);
    };
    for (int i = 0; i < 3; ++i) add("first" + std::to_string(i));
    const std::vector<Request> requests =
        AddRequests(static_cast<int64_t>(seed) + 1, 150, seed);
    Thread reviver("reviver", [&] {
      for (int i = 0; deaths.Pop(); ++i) add("new" + std::to_string(i));
    });
    const size_t before = seed * 150;
    queue_.WaitForResults(before + 150);
    deaths.Close();
    reviver.Join();
    ExpectResults(requests);
    EXPECT_GT(dispatcher_->cluster_state().epoch(), 3) << "nobody died";
    Stop();
    workers_.clear();
    EXPECT_THAT(pipeline_->violations(), IsEmpty());
    server_.reset();
    service_.reset();
    dispatcher_.reset();
  }
}

TEST_F(DispatcherTest, RecoversFromAFailedStage) {
  Start(HashModel(1000));
  auto a = AddWorker("a");
  pipeline_->SetOnStep([&](int64_t step) {
    if (step != 7) return;
    v1::WorkerMessage message;
    message.mutable_stage_failed()->set_epoch(1);
    message.mutable_stage_failed()->set_code(
        static_cast<int>(absl::StatusCode::kInternal));
    a->Send(message);
  });
  const std::vector<Request> requests = AddRequests(1, 30, 6);
  queue_.WaitForResults(30);
  ExpectResults(requests);
  EXPECT_EQ(dispatcher_->cluster_state().epoch(), 2);
  Stop();
}

TEST_F(DispatcherTest, CutsAWorkerThatAnswersNonsense) {
  Start(HashModel(1000));
  auto a = AddWorker("a");
  pipeline_->SetOnResult([](v1::StepResult* result) {
    if (result->step() == 5) result->set_block(17);
  });
  const std::vector<Request> requests = AddRequests(1, 30, 7);
  EXPECT_FALSE(a->WaitForEnd().ok());
  AddWorker("a");
  queue_.WaitForResults(30);
  ExpectResults(requests);
  Stop();
}

TEST_F(DispatcherTest, IgnoresResultsOfOlderEpochs) {
  Start(HashModel(1000));
  auto a = AddWorker("a");
  v1::WorkerMessage stale;
  pipeline_->SetOnResult([&](v1::StepResult* result) {
    if (result->epoch() == 1 && result->step() == 3) {
      *stale.mutable_step_result() = *result;
      v1::WorkerMessage failed;
      failed.mutable_stage_failed()->set_epoch(1);
      failed.mutable_stage_failed()->set_code(13);
      a->Send(failed);  // the result follows the failure
    } else if (result->epoch() == 2) {
      a->Send(stale);
    }
  });
  const std::vector<Request> requests = AddRequests(1, 30, 8);
  queue_.WaitForResults(30);
  ExpectResults(requests);
  Stop();
}

TEST_F(DispatcherTest, ShowsWhyAStageCannotLoad) {
  options_.cluster.min_workers = 2;
  Start(HashModel(40));
  const std::vector<Request> requests = AddRequests(1, 10, 9);
  auto a = AddWorker("a");
  a->WaitFor(v1::CoordinatorMessage::kRegistered);
  v1::StageFailed failure;
  failure.set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  failure.set_message("the weights need 9 GB, the budget is 1 GB");
  a->FailToLoad(failure);
  AddWorker("b");
  queue_.WaitForDetail("the budget is 1 GB");
  a->Kill();
  AddWorker("c");
  queue_.WaitForResults(10);
  ExpectResults(requests);
}

TEST_F(DispatcherTest, CancelEndsAJobAndFreesItsSlots) {
  Start([](uint64_t, const std::vector<int32_t>&) { return 'x'; });
  AddWorker("a");
  BoundedQueue<int> reached(1);
  pipeline_->SetOnStep([&](int64_t step) {
    int one = 1;
    if (step == 10) reached.TryPush(one);
  });
  std::vector<Request> endless;
  for (int i = 0; i < 20; ++i) {
    endless.push_back(MakeRequest(1, i, "Q", 400));
  }
  queue_.Add(endless);
  dispatcher_->NotifyWork();
  ASSERT_TRUE(reached.Pop().has_value());
  queue_.Add({MakeRequest(2, 0, "Q", 3)});
  dispatcher_->NotifyWork();
  dispatcher_->Cancel(JobId(1));
  // Requests not taken yet stay with the queue, which would end them itself;
  // from this queue they are still taken.
  queue_.WaitForTaken(9);
  dispatcher_->Cancel(JobId(1));
  while (!queue_.results().contains({2, 0})) {
    queue_.WaitForResults(queue_.results().size() + 1);
    dispatcher_->Cancel(JobId(1));
  }
  const auto results = queue_.results();
  EXPECT_EQ(results.at({2, 0}).text, "xxx");
  EXPECT_EQ(results.at({1, 0}).status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(queue_.doubled(), 0);
  Stop();
}

TEST_F(DispatcherTest, WhatIsNotBegunGoesBackToTheQueueWhenTheOrderChanges) {
  Start([](uint64_t, const std::vector<int32_t>&) { return 'x'; });
  AddWorker("a");
  BoundedQueue<int> reached(1);
  pipeline_->SetOnStep([&](int64_t step) {
    int one = 1;
    if (step == 10) reached.TryPush(one);
  });
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) requests.push_back(MakeRequest(1, i, "Q", 40));
  queue_.Add(requests);
  dispatcher_->NotifyWork();
  ASSERT_TRUE(reached.Pop().has_value());
  dispatcher_->Reorder();
  queue_.WaitForReturned(1);
  queue_.WaitForResults(40);
  EXPECT_EQ(queue_.doubled(), 0);
  EXPECT_EQ(queue_.replays(), 0);
  for (const auto& [id, generation] : queue_.results()) {
    EXPECT_EQ(generation.text, std::string(40, 'x'));
  }
  Stop();
}

TEST_F(DispatcherTest, WithoutWorkersAllThatWaitsGoesBack) {
  Start(HashModel(1000));
  auto a = AddWorker("a");
  pipeline_->SetOnStep([&](int64_t step) {
    if (step == 20) a->Kill();
  });
  queue_.WaitForReady();
  const std::vector<Request> requests = AddRequests(1, 50, 5);
  queue_.WaitForDetail("waiting for workers");
  dispatcher_->Reorder();
  queue_.WaitForReturned(1);
  pipeline_->SetOnStep(nullptr);
  AddWorker("b");
  queue_.WaitForResults(50);
  ExpectResults(requests);
  EXPECT_EQ(queue_.doubled(), 0);
  Stop();
}

TEST_F(DispatcherTest, RequestsThatNeverFitEndWithAnError) {
  Start(HashModel(40), /*kv_pages=*/4, /*page_tokens=*/8);
  queue_.Add({MakeRequest(1, 0, "Q", 32), MakeRequest(1, 1, "Q", 31)});
  AddWorker("a");
  queue_.WaitForResults(2);
  const auto results = queue_.results();
  EXPECT_EQ(results.at({1, 0}).status.code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(results.at({1, 1}).status.ok());
}

TEST_F(DispatcherTest, ShowsThatReadingFailsAndTriesAgain) {
  Start(HashModel(40));
  queue_.FailReads(absl::DataLossError("disk is on fire"));
  const std::vector<Request> requests = AddRequests(1, 10, 10);
  AddWorker("a");
  queue_.WaitForDetail("disk is on fire");
  queue_.FailReads(absl::OkStatus());
  queue_.WaitForResults(10);
  ExpectResults(requests);
  queue_.WaitForReady();
}

TEST_F(DispatcherTest, AHungWorkerIsDropped) {
  ManualClock& clock = manual_clock_;
  options_.cluster.clock = &clock;
  options_.cluster.min_workers = 2;
  Start(HashModel(40));
  auto a = AddWorker("a");  // fake workers send no heartbeats
  a->WaitFor(v1::CoordinatorMessage::kRegistered);
  // One tick counts for no more than a quarter of the time-out. A lost worker
  // is forgotten after some days.
  while (!queue_.HasDetail(
      "waiting for workers: 0 of 2 registered; worker 'a' was lost: no "
      "heartbeat")) {
    clock.Advance(options_.cluster.timeouts.heartbeat_timeout / 4);
    dispatcher_->Tick();
    absl::SleepFor(absl::Milliseconds(1));
  }
  // The worker is told why, except while a message to it is being written: its
  // stream is then broken off.
  EXPECT_THAT(a->WaitForEnd().error_code(),
              testing::AnyOf(grpc::StatusCode::DEADLINE_EXCEEDED,
                             grpc::StatusCode::CANCELLED));
}

TEST_F(DispatcherTest, ShutdownLeavesRequestsWithoutResults) {
  Start([](uint64_t, const std::vector<int32_t>&) { return 'x'; });
  auto a = AddWorker("a");
  queue_.Add({MakeRequest(1, 0, "Q", 400), MakeRequest(1, 1, "Q", 1)});
  BoundedQueue<int> gate(1000);
  pipeline_->SetOnStep([&](int64_t step) {
    if (step > 20) gate.Pop();
  });
  dispatcher_->NotifyWork();
  queue_.WaitForResults(1);
  dispatcher_->Shutdown();
  service_->Shutdown();
  gate.Close();
  EXPECT_FALSE(a->WaitForEnd().ok());
  EXPECT_EQ(queue_.results().size(), 1);
  dispatcher_->Shutdown();  // again
  dispatcher_->NotifyWork();
  dispatcher_->Cancel(JobId(1));
}

// All kinds of requests, with a dispatcher that is ended again and again; each
// begins from the tokens that the ones before gave to the queue.
TEST_F(DispatcherTest, GoesOnFromTheTokensThatWereKept) {
  Start(HashModel(40), /*kv_pages=*/400);
  const std::vector<Request> requests = AddRequests(1, 60, 4);
  for (int run = 1; run <= 3; ++run) {
    AddWorker("a");
    queue_.WaitForTokens(100 * run);
    dispatcher_->KeepTokens();
    Stop();
    dispatcher_->KeepTokens();  // does not wait for ever
    workers_.clear();
    EXPECT_THAT(pipeline_->violations(), IsEmpty());
    const auto results = queue_.results();
    const auto known = queue_.kept();
    std::vector<Request> left;
    for (Request request : requests) {
      const std::pair key = {request.job.value(), request.index};
      if (results.contains(key)) continue;
      if (const auto it = known.find(key); it != known.end()) {
        request.known = it->second;
      }
      left.push_back(std::move(request));
    }
    EXPECT_FALSE(known.empty());
    queue_.Replace(std::move(left));
    Start(HashModel(40), /*kv_pages=*/400);
    dispatcher_->NotifyWork();
  }
  AddWorker("a");
  queue_.WaitForResults(60);
  ExpectResults(requests);
}

TEST_F(DispatcherTest, GivesNewTokensToTheQueueFromTimeToTime) {
  options_.keep_interval = absl::Milliseconds(1);
  Start(HashModel(1000));
  AddRequests(1, 100, 3);
  AddWorker("a");
  queue_.WaitForKept(20);
}

TEST_F(DispatcherTest, RefusesIncompleteOptions) {
  Dispatcher::Options options = options_;
  options.queue = nullptr;
  EXPECT_FALSE(Dispatcher::Create(options).ok());
  options = options_;
  options.driver.vocab_size = 0;
  EXPECT_FALSE(Dispatcher::Create(options).ok());
}

}  // namespace
}  // namespace sluice
