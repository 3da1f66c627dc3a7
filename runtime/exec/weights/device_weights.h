#pragma once

#include <algorithm>
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
#include "runtime/exec/device_compute.h"
#include "runtime/exec/weights/unit_order.h"
#include "runtime/exec/weights/weight_store.h"
#include "runtime/kernels/backend.h"
#include "runtime/memory/device.h"
#include "runtime/memory/disk/io_completion.h"

namespace sluice {

// The weights of one stage as a device with memory of its own sees them: a
// prefix of each unit lives on the device, the rest is copied there, sweep
// after sweep, from wherever the WeightStore below has it.
//
// A thread takes unit after unit from the store, in the order of use and as far
// ahead as there are slots, and copies it in pieces of which few are on the
// wire at a time, so that other copies need not wait behind a whole layer.
// Acquire waits for its own unit only.
//
// Used by one thread, but for the store's loading, before Start().
class DeviceWeights {
 public:
  struct Options {
    // All pointers must outlive this.
    Device* device = nullptr;
    DeviceCompute* compute = nullptr;
    int num_layers = 0;  // of the stage; further units are the head's
    int slots = 2;
    size_t slot_bytes = 0;  // that each has room for; 0: nothing is brought
    bool overlap = true;    // copy before it is asked for
    // Adds the seconds that Acquire waited.
    double* stall_seconds = nullptr;
  };
  explicit DeviceWeights(const Options& options) : options_(options) {}
  ~DeviceWeights();

  // WeightStore::Options::to_device. Charged to the device.
  absl::Status Keep(int unit, std::span<const std::byte> prefix);
  // Takes the store over: from now on nobody else may use it but for what it
  // tells about itself, and for the embedding. It must outlive this.
  absl::Status Start(WeightStore* store);

  // WeightStore::Options::read_bytes; and what it says, as of the last unit.
  uint64_t* store_read_bytes() { return &store_read_bytes_; }
  uint64_t read_bytes() const;

  // Whether any layer is not on the device as a whole.
  bool streams_layers() const {
    return std::any_of(units_.begin(), units_.begin() + options_.num_layers,
                       [](const Unit& unit) { return unit.streamed(); });
  }

  // As WeightStore's.
  void BeginSweep(int layer_passes, int head_passes);
  // As WeightStore's. The first error, of the store or of a copy, sticks until
  // Rewind().
  absl::StatusOr<ImageView> Acquire(int unit);
  // What was brought for the unit may be overwritten now: waits until the
  // device has computed with it.
  absl::Status Release(int unit);
  // REQUIRES: the device computes with none of these.
  void Rewind();

 private:
  struct Unit {
    DeviceBuffer resident;
    size_t bytes = 0;
    size_t device_end = 0;
    // As in WeightStore::Unit, where the device's bytes end.
    size_t split = 0;
    size_t slot_begin = 0;
    int held_slot = -1;  // between Acquire and Release
    bool streamed() const { return device_end < bytes; }
  };
  struct Slot {
    DeviceBuffer buffer;
    int unit = -1;  // -1: free
    bool full = false;
  };
  // Copies that are on the wire at a time.
  static constexpr int kInFlight = 2;

  void Loop();
  absl::Status Fill(int unit, const Slot& slot);
  UnitOrder FirstSweep() const {
    return {options_.num_layers,
            static_cast<int>(units_.size()) - options_.num_layers};
  }
  void SkipResident() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Slot* FreeSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  WeightStore* store_ = nullptr;
  std::vector<Unit> units_;

  uint64_t store_read_bytes_ = 0;  // the thread's own
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);
  std::deque<int> queue_ ABSL_GUARDED_BY(mu_);  // slots in order of use
  // Stands at the unit to be filled next.
  UnitOrder order_ ABSL_GUARDED_BY(mu_){1, 0};
  // Sweeps that the store has not been told of.
  std::deque<std::pair<int, int>> sweeps_ ABSL_GUARDED_BY(mu_);
  int wanted_ ABSL_GUARDED_BY(mu_) = -1;  // unit that Acquire waits for
  bool rewinding_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t read_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);

  Thread thread_;
};

}  // namespace sluice
