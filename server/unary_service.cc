#include "server/unary_service.h"

#include <utility>

#include "proto/grpc_status.h"
#include "proto/tsan_handoff.h"

namespace sluice {
namespace {

// More waiting calls than this are refused.
constexpr size_t kMaxWaiting = 10'000;

class UnaryCall : public grpc::ServerUnaryReactor {
 public:
  void End(const absl::Status& status) {
    HandOff(this);
    Finish(ToGrpcStatus(status));
  }
  void OnDone() override {
    TakeOver(this);
    delete this;
  }
};

}  // namespace

grpc::ServerUnaryReactor* AnswerLater(Executor* executor,
                                      std::function<absl::Status()> work) {
  TakeOver(executor);
  auto* const call = new UnaryCall;  // OnDone deletes it
  if (executor->waiting() >= kMaxWaiting) {
    call->End(absl::ResourceExhaustedError(
        "too many calls wait for an answer; try again later"));
    return call;
  }
  executor->Run([call, work = std::move(work)] { call->End(work()); });
  return call;
}

}  // namespace sluice
