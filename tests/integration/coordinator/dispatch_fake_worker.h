#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "sluice/v1/pipeline.grpc.pb.h"
#include "tests/unit/coordinator/dispatch/dispatch_testing.h"

namespace sluice {

class FakeWorker;

// Fakes the links between fake workers and the stages' state: runs a plan that
// reached the first stage with a `Model`, and answers through the last stage.
// Checks the dispatcher's protocol: a plan that a real stage could not carry
// out is noted as a violation. Thread-safe.
class FakePipeline {
 public:
  // `kv_by_need` is v1::StageReady's.
  FakePipeline(Model model, int64_t kv_pages, int32_t page_tokens,
               bool kv_by_need = true);

  void Assign(const v1::AssignStage& assign, std::shared_ptr<FakeWorker> who);
  // Computes the plan and sends the result; a plan of an old epoch is dropped.
  void Run(const v1::StepPlan& plan);

  // Called (without locks) with the number of each step before it is computed.
  void SetOnStep(std::function<void(int64_t)> on_step);
  // Called with each result before it is sent, which it may spoil.
  void SetOnResult(std::function<void(v1::StepResult*)> on_result);

  int64_t kv_pages() const { return kv_pages_; }
  int32_t page_tokens() const { return page_tokens_; }
  bool kv_by_need() const { return kv_by_need_; }
  std::vector<std::string> violations() const;
  int64_t steps() const;
  // The positions that sequences shared and did not compute.
  int64_t shared_positions() const;
  // The maximum of blocks whose steps were computed at one time.
  std::set<int32_t> blocks_seen() const;

 private:
  struct Sequence {
    int32_t max_positions = 0;
    uint64_t seed = 0;
    int32_t logprobs = -1;
    std::vector<int32_t> tokens;  // in the KV cache
    std::vector<int64_t> pages;   // some of them shared
  };

  // Gives a sequence the positions that it shares. Returns what is wrong, or
  // "".
  std::string Share(const v1::SharedPrefix& prefix, Sequence* sequence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives a sequence pages for so many positions.
  void Grow(Sequence* sequence, int64_t positions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  v1::StepResult Compute(const v1::StepPlan& plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Score(const v1::Segment& segment, const std::vector<int32_t>& tokens,
             int32_t logprobs, v1::StepResult* result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Model model_;
  const int64_t kv_pages_;
  const int32_t page_tokens_;
  const bool kv_by_need_;
  mutable Mutex mu_;
  std::function<void(int64_t)> on_step_ ABSL_GUARDED_BY(mu_);
  std::function<void(v1::StepResult*)> on_result_ ABSL_GUARDED_BY(mu_);
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  v1::AssignStage assigned_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<FakeWorker> last_stage_ ABSL_GUARDED_BY(mu_);
  // With kept prefixes, whose ids are below 0.
  std::map<int64_t, Sequence> sequences_ ABSL_GUARDED_BY(mu_);
  int64_t next_page_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t shared_positions_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t last_step_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t steps_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<int32_t> blocks_seen_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> violations_ ABSL_GUARDED_BY(mu_);
};

// Speaks the worker's side of WorkerService over a channel. Thread-safe.
class FakeWorker : public std::enable_shared_from_this<FakeWorker> {
 public:
  // `pipeline` must outlive the worker.
  static std::shared_ptr<FakeWorker> Attach(
      std::shared_ptr<grpc::Channel> channel, FakePipeline* pipeline,
      const std::string& name);
  ~FakeWorker();

  // Ends the stream as a dying process does.
  void Kill();
  // Waits for the end of the stream.
  grpc::Status WaitForEnd();
  // Waits until a message of this kind arrived.
  void WaitFor(v1::CoordinatorMessage::KindCase kind);
  void Send(const v1::WorkerMessage& message);
  // Answers with this failure instead of StageReady from now on.
  void FailToLoad(v1::StageFailed failure);

 private:
  FakeWorker(std::shared_ptr<grpc::Channel> channel, FakePipeline* pipeline);
  void Run();
  void OnAssign(const v1::AssignStage& assign);
  void OnReachLinks(const v1::ReachLinks& reach);

  FakePipeline* const pipeline_;
  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  std::unique_ptr<
      grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>>
      stream_;
  Mutex write_mu_;
  Mutex mu_;
  CondVar changed_;
  std::set<int> seen_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::StageFailed> failure_ ABSL_GUARDED_BY(mu_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

}  // namespace sluice
