#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/cluster/worker_service.h"
#include "coordinator/dispatch/dispatcher.h"
#include "proto/grpc_endpoint.h"
#include "tests/integration/coordinator/dispatch_fake_worker.h"
#include "tests/support/manual_clock.h"
#include "tests/unit/coordinator/dispatch/dispatch_testing.h"

namespace sluice {

// A dispatcher behind a real gRPC server in this process, for fake workers.
// Pipelines are the tests', which call Stop() before these end.
class DispatcherFixture : public testing::Test {
 protected:
  DispatcherFixture() : metrics_(CreateNullMetrics()) {
    ClusterOptions& cluster = options_.cluster;
    cluster.num_layers = 4;
    cluster.max_model_len = 1000;
    cluster.policy.gbs = 4;
    cluster.policy.max_step_tokens = 16;
    cluster.timeouts.settle_time = absl::ZeroDuration();
    // Fake workers send no heartbeats, and machines may be slow.
    cluster.timeouts.heartbeat_timeout = absl::Hours(1);
    cluster.timeouts.first_back_off = absl::Milliseconds(1);
    cluster.clock = Clock::Real();
    options_.queue = &queue_;
    options_.driver.tokenizer = &tokenizer_;
    options_.metrics = metrics_.get();
    options_.driver.vocab_size = FakeTokenizer::kAsciiVocab;
    options_.driver.eos_tokens = {FakeTokenizer::kAsciiEos};
    options_.min_window = 8;
    options_.tick_interval = absl::Milliseconds(2);
    options_.report_interval = absl::Milliseconds(2);
  }

  // Starts the dispatcher and its server.
  void Listen() {
    auto dispatcher = Dispatcher::Create(options_);
    ASSERT_TRUE(dispatcher.ok()) << dispatcher.status();
    dispatcher_ = *std::move(dispatcher);
    service_ = WorkerAttachService::Create(dispatcher_->sink(), {});
    server_ = *StartServer(ServerKind::kCoordinator, "", {service_->service()});
  }

  // Afterwards nothing calls the pipelines' hooks any more.
  void Stop() {
    if (dispatcher_) dispatcher_->Shutdown();
    if (service_) service_->Shutdown();
    if (server_) server_->Shutdown();
    for (const auto& worker : workers_) worker->WaitForEnd();
  }

  std::shared_ptr<FakeWorker> Attach(const std::string& name,
                                     FakePipeline* pipeline) {
    return workers_.emplace_back(FakeWorker::Attach(
        LocalChannel(ChannelKind::kWorker, server_.get()), pipeline, name));
  }

  FakeTokenizer tokenizer_;
  MemoryQueue queue_;
  std::unique_ptr<MetricsRegistry> metrics_;
  ManualClock manual_clock_;  // outlives the dispatcher
  Dispatcher::Options options_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::unique_ptr<WorkerAttachService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::shared_ptr<FakeWorker>> workers_;
};

}  // namespace sluice
