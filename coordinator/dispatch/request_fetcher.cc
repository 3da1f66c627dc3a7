#include "coordinator/dispatch/request_fetcher.h"

#include <utility>

namespace sluice {

RequestFetcher::RequestFetcher(RequestQueue* queue, Done done)
    : queue_(queue),
      done_(std::move(done)),
      thread_("request-fetch", [this] { Run(); }) {}

RequestFetcher::~RequestFetcher() {
  {
    MutexLock lock(&mu_);
    closed_ = true;
    changed_.NotifyOne();
  }
  thread_.Join();
}

void RequestFetcher::Fetch(size_t max) {
  MutexLock lock(&mu_);
  wanted_ = max;
  changed_.NotifyOne();
}

void RequestFetcher::Run() {
  for (;;) {
    size_t wanted;
    {
      MutexLock lock(&mu_);
      while (wanted_ == 0 && !closed_) changed_.Wait(&mu_);
      if (closed_) return;
      wanted = std::exchange(wanted_, 0);
    }
    done_(queue_->TakeRequests(wanted));
  }
}

}  // namespace sluice
