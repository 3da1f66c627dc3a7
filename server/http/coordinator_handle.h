#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/threads/mutex.h"
#include "coordinator/coordinator.h"

namespace sluice {

// A coordinator for HTTP routes, which are there before it starts and after it
// ends. Thread-safe.
class CoordinatorHandle {
 public:
  // `coordinator` must live until Close, which waits for calls of Use under
  // way.
  void Open(Coordinator* coordinator);
  void Close();

  // What `work` returns of the coordinator; kUnavailable before Open and after
  // Close.
  absl::StatusOr<std::string> Use(
      const std::function<absl::StatusOr<std::string>(Coordinator*)>& work);

 private:
  Mutex mu_;
  CondVar idle_;
  Coordinator* coordinator_ ABSL_GUARDED_BY(mu_) = nullptr;
  int busy_ ABSL_GUARDED_BY(mu_) = 0;  // calls of Use under way
};

// Opens a handle as long as it lives.
class OpenCoordinator {
 public:
  OpenCoordinator(CoordinatorHandle* handle, Coordinator* coordinator)
      : handle_(handle) {
    handle->Open(coordinator);
  }
  ~OpenCoordinator() { handle_->Close(); }
  OpenCoordinator(const OpenCoordinator&) = delete;
  OpenCoordinator& operator=(const OpenCoordinator&) = delete;

 private:
  CoordinatorHandle* const handle_;
};

}  // namespace sluice
