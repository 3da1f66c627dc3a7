#include "runtime/collective/shared_collective.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"
#include "common/threads/spin_pause.h"

namespace sluice {
namespace {

// About 20 microseconds, as ComputePool's threads wait for the next loop.
constexpr int kSpins = 400;
// The bytes that a task copies, at least: less is done sooner than handed out.
constexpr size_t kTaskBytes = size_t{64} << 10;

bool SameBounds(const ColumnGather& a, const ColumnGather& b) {
  return a.rows == b.rows && a.to_rank == b.to_rank &&
         std::equal(a.bounds.begin(), a.bounds.end(), b.bounds.begin(),
                    b.bounds.end());
}

}  // namespace

class SharedGroup::Rank : public Collective {
 public:
  Rank(SharedGroup* group, int rank) : group_(*group), rank_(rank) {}
  int rank() const override { return rank_; }
  int ranks() const override {
    return static_cast<int>(group_.gathers_.size());
  }

  absl::Status Gather(const ColumnGather& gather, ComputePool& pool) override {
    if (gather.bounds.size() != group_.gathers_.size() + 1) {
      return Internal("a row is cut at ", gather.bounds.size(),
                      " bounds for a group of ", group_.gathers_.size());
    }
    group_.gathers_[rank_] = gather;
    SLUICE_RETURN_IF_ERROR(group_.Meet());
    absl::Status status;
    for (const ColumnGather& other : group_.gathers_) {
      if (!SameBounds(gather, other)) {
        status = Internal("rank ", rank_,
                          " exchanges other rows than the ranks beside it");
      }
    }
    const bool gets =
        gather.to_rank == ColumnGather::kAllRanks || gather.to_rank == rank_;
    if (status.ok() && gets) Copy(gather, pool);
    if (!status.ok()) group_.Abort(status);
    // Nobody may overwrite what others still read.
    const absl::Status met = group_.Meet();
    return status.ok() ? met : status;
  }

 private:
  void Copy(const ColumnGather& gather, ComputePool& pool) const {
    const size_t row_bytes = gather.bounds.back();
    const auto rows = static_cast<size_t>(gather.rows);
    if (rows == 0 || row_bytes == 0) return;
    const size_t per_task = std::max<size_t>(1, kTaskBytes / row_bytes);
    const auto tasks = static_cast<int>((rows + per_task - 1) / per_task);
    pool.ParallelFor(tasks, [&](int task, int) {
      const size_t begin = task * per_task;
      const size_t end = std::min(rows, begin + per_task);
      for (size_t r = 0; r < group_.gathers_.size(); ++r) {
        const ColumnGather& source = group_.gathers_[r];
        const size_t bytes = gather.bounds[r + 1] - gather.bounds[r];
        std::byte* const to = gather.to + gather.bounds[r];
        if (bytes == 0 || source.from == to) continue;
        for (size_t row = begin; row < end; ++row) {
          std::memcpy(to + row * gather.to_stride,
                      source.from + row * source.from_stride, bytes);
        }
      }
    });
  }

  SharedGroup& group_;
  const int rank_;
};

SharedGroup::SharedGroup(int ranks) : gathers_(ranks) {
  for (int i = 0; i < ranks; ++i) {
    ranks_.push_back(std::make_unique<Rank>(this, i));
  }
}

SharedGroup::~SharedGroup() = default;

Collective& SharedGroup::rank(int rank) { return *ranks_[rank]; }

void SharedGroup::Abort(const absl::Status& why) {
  MutexLock lock(&mu_);
  if (status_.ok()) status_ = why;
  failed_.store(true, std::memory_order_release);
  changed_.NotifyAll();
}

void SharedGroup::Reset() {
  MutexLock lock(&mu_);
  status_ = absl::OkStatus();
  failed_.store(false);
  arrived_ = 0;
}

absl::Status SharedGroup::Meet() {
  uint64_t meeting = 0;
  {
    MutexLock lock(&mu_);
    SLUICE_RETURN_IF_ERROR(status_);
    meeting = meetings_.load(std::memory_order_relaxed);
    if (++arrived_ == static_cast<int>(ranks_.size())) {
      arrived_ = 0;
      meetings_.store(meeting + 1, std::memory_order_release);
      changed_.NotifyAll();
      return absl::OkStatus();
    }
  }
  for (int spin = 0; spin < kSpins; ++spin) {
    if (meetings_.load(std::memory_order_acquire) != meeting) {
      return absl::OkStatus();
    }
    if (failed_.load(std::memory_order_acquire)) break;
    SpinPause();
  }
  MutexLock lock(&mu_);
  while (meetings_.load(std::memory_order_relaxed) == meeting && status_.ok()) {
    changed_.Wait(&mu_);
  }
  // A meeting that took place counts, whatever came after it.
  return meetings_.load(std::memory_order_relaxed) != meeting ? absl::OkStatus()
                                                              : status_;
}

}  // namespace sluice
