#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "coordinator/request_queue.h"

namespace sluice {

// Reads requests ahead on a thread of its own, so that the dispatcher never
// waits for a disk. Thread-safe.
class RequestFetcher {
 public:
  using Done = std::function<void(absl::StatusOr<std::vector<Request>>)>;

  // `queue` must outlive the fetcher. `done` gets each answer, in the
  // fetcher's thread.
  RequestFetcher(RequestQueue* queue, Done done);
  ~RequestFetcher();

  // Asks for up to `max` requests. REQUIRES: the last answer has come.
  void Fetch(size_t max);

 private:
  void Run();

  RequestQueue* const queue_;
  const Done done_;
  Mutex mu_;
  CondVar changed_;
  size_t wanted_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace sluice
