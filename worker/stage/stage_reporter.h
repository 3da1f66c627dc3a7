#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/step_plan.h"
#include "runtime/exec/stage_executor.h"

namespace sluice {

namespace v1 {
class WorkerMessage;
}  // namespace v1

// Returns `status`, which is an error, with a payload which says that the link
// to the next stage could not be opened.
absl::Status NextUnreached(absl::Status status);
bool IsNextUnreached(const absl::Status& status);

// Sends a stage's reports to the coordinator that assigned it; once that is
// gone, they are dropped. Thread-safe; never waits.
class StageReporter {
 public:
  // `send` must be thread-safe, and not wait either.
  explicit StageReporter(std::function<void(v1::WorkerMessage)> send)
      : send_(std::move(send)) {}

  // `fetching`: the bytes are those of the model's files that are fetched.
  void Progress(PlanEpoch epoch, uint64_t bytes_done, uint64_t bytes_total,
                bool fetching = false);
  // Says what room the stage has.
  void Ready(PlanEpoch epoch, const StageExecutor& stage);
  // `status` may have NextUnreached's payload.
  void Failed(PlanEpoch epoch, const absl::Status& status);
  void Result(const StepResult& result, double compute_seconds);
  // Sends a link's id for the next stage: see LinkService::Join.
  void LinkId(PlanEpoch epoch, const std::string& id);

 private:
  const std::function<void(v1::WorkerMessage)> send_;
};

}  // namespace sluice
