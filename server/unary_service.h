#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>

#include "absl/status/status.h"
#include "common/threads/executor.h"

namespace sluice {

// Answers a call that has one answer on `executor`, where `work` may wait.
// `work` fills the response, which lives as long as the call. The executor's
// owner hands it off (proto/tsan_handoff.h).
grpc::ServerUnaryReactor* AnswerLater(Executor* executor,
                                      std::function<absl::Status()> work);

}  // namespace sluice
