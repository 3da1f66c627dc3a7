#include "server/http/coordinator_handle.h"

namespace sluice {

void CoordinatorHandle::Open(Coordinator* coordinator) {
  MutexLock lock(&mu_);
  coordinator_ = coordinator;
}

void CoordinatorHandle::Close() {
  MutexLock lock(&mu_);
  coordinator_ = nullptr;
  while (busy_ > 0) idle_.Wait(&mu_);
}

absl::StatusOr<std::string> CoordinatorHandle::Use(
    const std::function<absl::StatusOr<std::string>(Coordinator*)>& work) {
  Coordinator* coordinator;
  {
    MutexLock lock(&mu_);
    if (coordinator_ == nullptr) {
      return absl::UnavailableError("the coordinator starts or ends");
    }
    coordinator = coordinator_;
    ++busy_;
  }
  absl::StatusOr<std::string> answer = work(coordinator);
  MutexLock lock(&mu_);
  if (--busy_ == 0) idle_.NotifyAll();
  return answer;
}

}  // namespace sluice
