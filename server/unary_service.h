#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>

#include "absl/status/status.h"
#include "common/threads/executor.h"

namespace sluice {

// Answers a call that has one answer from `executor`, where `work` may wait.
// `work` fills the response, which lives as long as the call. Whoever made the
// executor hands it off (proto/tsan_handoff.h).
grpc::ServerUnaryReactor* AnswerLater(Executor* executor,
                                      std::function<absl::Status()> work);

}  // namespace sluice
