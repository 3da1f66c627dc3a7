#include "common/threads/regular_update.h"

#include <utility>

namespace sluice {

RegularUpdate::RegularUpdate(std::function<void()> update,
                             absl::Duration interval)
    : update_(std::move(update)), interval_(interval) {
  update_();
  thread_ = Thread("update", [this] { Run(); });
}

RegularUpdate::~RegularUpdate() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}

void RegularUpdate::Run() {
  while (true) {
    {
      MutexLock lock(&mu_);
      if (!stop_) changed_.WaitFor(&mu_, interval_);
      if (stop_) return;
    }
    update_();
  }
}

}  // namespace sluice
