#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/host/host_port.h"
#include "gtest/gtest.h"
#include "proto/convert.h"
#include "tests/integration/worker/fake_executor.h"
#include "tests/integration/worker/test_coordinator.h"
#include "tests/support/test_metrics.h"
#include "worker/link/link_server.h"
#include "worker/worker.h"

// Chains of workers in one process, over real gRPC, with a coordinator that
// the tests play.

namespace sluice {

class TestWorker {
 public:
  // `change` is given the options before they are used.
  TestWorker(std::string name, const std::string& coordinator,
             std::unique_ptr<PayloadTransport> payloads = nullptr,
             const std::function<void(Worker::Options*)>& change = nullptr)
      : name_(std::move(name)) {
    Worker::Options options;
    options.name = name_;
    options.model_dir = "/models/test";
    options.coordinator_address = coordinator;
    options.machine.host_memory_bytes = uint64_t{1} << 30;
    options.machine.threads = 3;
    options.channels = TcpChannels();
    options.metrics = &metrics_;
    options.links.has_port = true;
    options.reconnect_delay = absl::Milliseconds(5);
    if (change) change(&options);
    Worker::Model model;
    model.hidden_size = FakeModel::kHidden;
    model.num_layers = FakeModel::kLayers;
    model.loader = model_.Loader();
    worker_ = std::make_unique<Worker>(std::move(options), std::move(model),
                                       std::move(payloads));
    server_ = *LinkServer::Start("127.0.0.1", 0, worker_->link_service(),
                                 nullptr, worker_->tcp_links());
    address_ = JoinHostPort("127.0.0.1", server_->port());
    worker_->Announce(address_);
  }
  ~TestWorker() {
    worker_->Shutdown();
    server_->Shutdown();
  }

  // Ends its server, as other workers see it when its machine goes away.
  void KillServer() { server_->Shutdown(); }

  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }
  FakeModel& model() { return model_; }
  TestMetrics& metrics() { return metrics_; }
  Worker& worker() { return *worker_; }

 private:
  const std::string name_;
  FakeModel model_;
  TestMetrics metrics_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<LinkServer> server_;
  std::string address_;
};

class WorkerChainTest : public ::testing::Test {
 protected:
  void StartWorkers(int n) {
    for (int i = 0; i < n; ++i) {
      workers_.push_back(std::make_unique<TestWorker>(absl::StrCat("w", i),
                                                      coordinator_.address()));
      coordinator_.AwaitAttached(workers_[i]->name());
    }
  }

  v1::CoordinatorMessage Assignment(int64_t epoch, int stage,
                                    int num_blocks = 2) {
    const int n = static_cast<int>(workers_.size());
    v1::CoordinatorMessage message;
    auto* assign = message.mutable_assign_stage();
    assign->set_epoch(epoch);
    assign->set_stage(stage);
    assign->set_num_stages(n);
    assign->mutable_layers()->set_begin(FakeModel::kLayers * stage / n);
    assign->mutable_layers()->set_end(FakeModel::kLayers * (stage + 1) / n);
    if (stage + 1 < n) {
      assign->set_next_link_address(workers_[stage + 1]->address());
      assign->set_next_link(link_);
    }
    if (stage > 0) assign->set_previous_link(link_);
    Policy policy;
    policy.gbs = 4;
    policy.num_microbatches = 2;
    policy.max_step_tokens = 32;
    ToProto(policy, assign->mutable_policy());
    assign->set_max_model_len(100);
    assign->set_max_sequences(16);
    assign->set_num_blocks(num_blocks);
    return message;
  }

  // Assigns from the last stage to the first, or the other way round.
  void AssignAll(int64_t epoch, bool first_stage_first = false) {
    const int n = static_cast<int>(workers_.size());
    for (int i = 0; i < n; ++i) {
      const int stage = first_stage_first ? i : n - 1 - i;
      coordinator_.Send(workers_[stage]->name(), Assignment(epoch, stage));
    }
    for (const auto& worker : workers_) {
      coordinator_.AwaitReady(worker->name(), epoch);
    }
  }

  static v1::CoordinatorMessage Step(int64_t epoch, int block, int64_t step,
                                     int batches = 2) {
    StepPlan plan;
    plan.epoch = PlanEpoch(epoch);
    plan.block = BlockId(block);
    plan.step = step;
    for (int k = 0; k < batches; ++k) {
      MicroBatch& batch = plan.micro_batches.emplace_back();
      const SequenceId sequence(10 * block + k);
      if (step == 0) plan.admit.push_back({sequence, 3, 10, {}});
      const int tokens = step == 0 ? 3 : 1;
      batch.segments.push_back({sequence,
                                step == 0 ? 0 : 2 + static_cast<int32_t>(step),
                                tokens, true});
      for (int t = 0; t < tokens; ++t) {
        batch.tokens.push_back(Token(block, step, k));
      }
    }
    v1::CoordinatorMessage message;
    ToProto(plan, message.mutable_step_plan());
    return message;
  }

  static int32_t Token(int block, int64_t step, int k) {
    return static_cast<int32_t>(block * 100'000'0 + step * 10 + k) % 5'000'000;
  }

  static void ExpectResult(const v1::StepResult& result, int64_t epoch,
                           int block, int64_t step, int batches = 2) {
    EXPECT_EQ(result.epoch(), epoch);
    EXPECT_EQ(result.block(), block);
    EXPECT_EQ(result.step(), step);
    ASSERT_EQ(result.tokens_size(), batches);
    for (int k = 0; k < batches; ++k) {
      EXPECT_EQ(result.tokens(k).sequence(), 10 * block + k);
      EXPECT_EQ(result.tokens(k).token(),
                FakeExecutor::Expected(Token(block, step, k)));
    }
  }

  // Runs one step through all stages.
  void ExpectStepWorks(int64_t epoch, int block = 0, int64_t step = 0) {
    coordinator_.Send("w0", Step(epoch, block, step));
    ExpectResult(coordinator_.AwaitResult(workers_.back()->name()), epoch,
                 block, step);
  }

  // Runs steps of epoch 1, all sent at once, through all stages.
  void ExpectStepsInOrder(int steps, int blocks) {
    for (int step = 0; step < steps; ++step) {
      for (int block = 0; block < blocks; ++block) {
        coordinator_.Send("w0", Step(1, block, step));
      }
    }
    for (int step = 0; step < steps; ++step) {
      for (int block = 0; block < blocks; ++block) {
        ExpectResult(coordinator_.AwaitResult(workers_.back()->name()), 1,
                     block, step);
      }
    }
  }

  // The bytes that worker `i` has "sent" or "received" over its links.
  double LinkBytes(int i, const std::string& direction) {
    return workers_[i]->metrics().Value(absl::StrCat(
        "sluice_link_bytes_total{direction=", direction, ",worker=w", i, "}"));
  }

  v1::LinkTransport link_ = v1::LINK_TRANSPORT_GRPC;  // of assignments
  TestCoordinator coordinator_;
  std::vector<std::unique_ptr<TestWorker>> workers_;
};

}  // namespace sluice
