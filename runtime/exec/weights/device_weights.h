#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "runtime/exec/stream_context.h"
#include "runtime/exec/weights/unit_order.h"
#include "runtime/exec/weights/weight_store.h"
#include "runtime/exec/weights/weights.h"
#include "runtime/memory/device.h"
#include "runtime/memory/disk/io_completion.h"
#include "runtime/placement/weight_units.h"

namespace sluice {

// The weights of one stage as a device with memory of its own sees them: a
// prefix of each unit lives on the device, the rest is copied there, sweep
// after sweep, from wherever the WeightStore below has it.
//
// A thread takes unit after unit from the store, in the order of use and as far
// ahead as there are slots, and copies it in pieces of which few are on the
// copy stream at a time, so that other copies need not wait behind a whole
// layer. Acquire waits for its own unit only.
class DeviceWeights : public Weights {
 public:
  // Loads the store, of which the device's share goes to the device at once;
  // the rest goes there through `slots` of `slot_bytes`. Errors as in
  // WeightStore::Load and Device::Allocate.
  static absl::StatusOr<std::unique_ptr<DeviceWeights>> Load(
      WeightStore::Options store, int slots, size_t slot_bytes,
      const WeightStore::Progress& progress);
  ~DeviceWeights() override;

  void BeginStep(int layer_passes, int head_passes) override;
  // The first error, of the store or of a copy, sticks until Reset().
  absl::StatusOr<PackedView> Acquire(int unit) override;
  // Waits until the device has computed with the unit.
  // The unit is brought all the same, and then passed by.
  absl::Status Skip(int unit) override;
  absl::Status Release(int unit) override;
  bool layers_stay() const override;
  void Reset() override;
  // Returns what the disk carried, as of the last unit.
  StreamTotals totals() const override;

 private:
  struct Unit : Cut {
    DeviceBuffer resident;
    int32_t skipped = 0;  // times, of those that it comes next
  };
  struct Slot {
    DeviceBuffer buffer;
    int unit = -1;  // -1: free
    bool full = false;
  };
  // Copies that are on the copy stream at a time.
  static constexpr int kInFlight = 2;

  explicit DeviceWeights(const StreamContext& context)
      : context_(context),
        num_layer_units_(context.units->first[context.layers.size()]) {}
  // Serves as WeightStore::Options::to_device. Charged to the device.
  absl::Status Keep(int unit, std::span<const std::byte> prefix);
  // Starts the thread; others then use the store only for what it tells.
  absl::Status Start(int slots, size_t slot_bytes);
  void Loop();
  absl::Status Fill(int unit, const Slot& slot);
  UnitOrder FirstSweep() const {
    return {num_layer_units_,
            static_cast<int>(units_.size()) - num_layer_units_};
  }
  void SkipResident() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether Acquire waits for a unit that is yet to be begun.
  bool WaitsForMore() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Slot* FreeSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const StreamContext context_;
  const int num_layer_units_;  // further units are the head's
  std::unique_ptr<WeightStore> store_;
  std::vector<Unit> units_;
  bool streams_ = false;
  double stall_seconds_ = 0;  // that Acquire() waited

  mutable Mutex mu_;
  CondVar changed_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);
  std::deque<int> queue_ ABSL_GUARDED_BY(mu_);  // slots in order of use
  // Stands at the unit to be filled next.
  UnitOrder order_ ABSL_GUARDED_BY(mu_){1, 0};
  // Sweeps that the store has not been told of.
  std::deque<std::pair<int, int>> sweeps_ ABSL_GUARDED_BY(mu_);
  int wanted_ ABSL_GUARDED_BY(mu_) = -1;  // unit that Acquire waits for
  bool resetting_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t read_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);

  Thread thread_;
};

}  // namespace sluice
