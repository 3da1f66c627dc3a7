#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/threads/mutex.h"
#include "runtime/collective/collective.h"

namespace sluice {

// A group of threads of this process: each rank copies the others' columns from
// where they lie. Who waits spins for some microseconds and then sleeps.
class SharedGroup : public CollectiveGroup {
 public:
  explicit SharedGroup(int ranks);
  ~SharedGroup() override;

  Collective& rank(int rank) override;
  void Abort(const absl::Status& why) override;
  void Reset() override;

 private:
  class Rank;

  // Waits until all ranks are here.
  absl::Status Meet();

  std::vector<std::unique_ptr<Rank>> ranks_;
  // What the ranks are about to exchange; written before a meeting, and read by
  // others between that and the next.
  std::vector<ColumnGather> gathers_;

  alignas(64) std::atomic<uint64_t> meetings_{0};  // that are over
  std::atomic<bool> failed_{false};
  Mutex mu_;
  CondVar changed_;
  int arrived_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
