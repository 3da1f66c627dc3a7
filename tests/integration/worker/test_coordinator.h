#pragma once

#include <grpcpp/server.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/threads/mutex.h"
#include "gtest/gtest.h"
#include "proto/grpc_endpoint.h"
#include "sluice/v1/pipeline.grpc.pb.h"

namespace sluice {

// A coordinator that a test controls: it keeps workers' messages and sends the
// test's, by real gRPC over loopback. Thread-safe.
class TestCoordinator : public v1::WorkerService::Service {
 public:
  TestCoordinator() {
    server_ =
        *StartServer(ServerKind::kCoordinator, "127.0.0.1:0", {this}, &port_);
  }
  ~TestCoordinator() override {
    Drop();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // Registrations are answered with `status` from now on, if it is an error.
  void Refuse(grpc::Status status) {
    MutexLock lock(&mu_);
    refuse_ = std::move(status);
  }

  // Breaks all streams.
  void Drop() {
    MutexLock lock(&mu_);
    for (auto& [name, worker] : workers_) {
      if (worker.context != nullptr) worker.context->TryCancel();
    }
  }

  // Waits until `name` has attached for the n-th time and is attached.
  v1::Register AwaitAttached(const std::string& name, int times = 1) {
    MutexLock lock(&mu_);
    while (workers_[name].attached < times ||
           workers_[name].stream == nullptr) {
      if (!WaitLocked()) break;
    }
    return workers_[name].registration;
  }
  void AwaitDetached(const std::string& name) {
    MutexLock lock(&mu_);
    while (workers_[name].stream != nullptr) {
      if (!WaitLocked()) break;
    }
  }
  void AwaitRefusals(int n) {
    MutexLock lock(&mu_);
    while (refusals_ < n) {
      if (!WaitLocked()) break;
    }
  }

  void Send(const std::string& name, const v1::CoordinatorMessage& message) {
    MutexLock lock(&mu_);
    if (auto* stream = workers_[name].stream) stream->Write(message);
  }

  // Waits for the oldest message of `name` that fits; drops it and those before
  // it.
  v1::WorkerMessage Await(
      const std::string& name,
      const std::function<bool(const v1::WorkerMessage&)>& fits) {
    MutexLock lock(&mu_);
    std::deque<v1::WorkerMessage>& messages = workers_[name].messages;
    for (;;) {
      while (!messages.empty()) {
        v1::WorkerMessage message = std::move(messages.front());
        messages.pop_front();
        if (fits(message)) return message;
      }
      if (!WaitLocked()) return {};
    }
  }

  v1::StageReady AwaitReady(const std::string& name, int64_t epoch) {
    return Await(name,
                 [&](const auto& m) {
                   // Stages of an ending epoch may report a failure.
                   EXPECT_FALSE(m.has_stage_failed() &&
                                m.stage_failed().epoch() >= epoch)
                       << name << ": " << m.stage_failed().message();
                   return m.has_stage_ready() &&
                          m.stage_ready().epoch() == epoch;
                 })
        .stage_ready();
  }
  v1::StageFailed AwaitFailed(const std::string& name, int64_t epoch) {
    return Await(name,
                 [&](const auto& m) {
                   return m.has_stage_failed() &&
                          m.stage_failed().epoch() == epoch;
                 })
        .stage_failed();
  }
  v1::StepResult AwaitResult(const std::string& name) {
    return Await(name, [&](const auto& m) { return m.has_step_result(); })
        .step_result();
  }
  v1::Heartbeat AwaitHeartbeat(
      const std::string& name,
      const std::function<bool(const v1::Heartbeat&)>& fits) {
    return Await(name,
                 [&](const auto& m) {
                   return m.has_heartbeat() && fits(m.heartbeat());
                 })
        .heartbeat();
  }

 private:
  using Stream =
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>;

  struct PerWorker {
    int attached = 0;
    grpc::ServerContext* context = nullptr;
    Stream* stream = nullptr;
    v1::Register registration;
    std::deque<v1::WorkerMessage> messages;
  };

  bool WaitLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (changed_.WaitFor(&mu_, absl::Seconds(60))) return true;
    ADD_FAILURE() << "what the test waits for never came";
    return false;
  }

  grpc::Status Attach(grpc::ServerContext* context, Stream* stream) override {
    v1::WorkerMessage message;
    if (!stream->Read(&message) || !message.has_register_()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no Register");
    }
    const std::string name = message.register_().name();
    {
      MutexLock lock(&mu_);
      if (!refuse_.ok()) {
        ++refusals_;
        changed_.NotifyAll();
        return refuse_;
      }
      v1::CoordinatorMessage answer;
      answer.mutable_registered()->set_worker_id(++last_id_);
      answer.mutable_registered()->set_heartbeat_interval_ms(10);
      stream->Write(answer);
      PerWorker& worker = workers_[name];
      ++worker.attached;
      worker.context = context;
      worker.stream = stream;
      worker.registration = message.register_();
      changed_.NotifyAll();
    }
    while (stream->Read(&message)) {
      MutexLock lock(&mu_);
      workers_[name].messages.push_back(message);
      changed_.NotifyAll();
    }
    MutexLock lock(&mu_);
    workers_[name].stream = nullptr;
    workers_[name].context = nullptr;
    changed_.NotifyAll();
    return grpc::Status::OK;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  Mutex mu_;
  CondVar changed_;
  grpc::Status refuse_ ABSL_GUARDED_BY(mu_);
  int refusals_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, PerWorker> workers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
