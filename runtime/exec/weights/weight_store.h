#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/policy.h"
#include "runtime/exec/weights/image_file.h"
#include "runtime/exec/weights/image_store.h"
#include "runtime/exec/weights/unit_order.h"
#include "runtime/kernels/backend.h"
#include "runtime/memory/device.h"
#include "runtime/memory/disk/io_completion.h"
#include "runtime/memory/disk/io_engine.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/model/checkpoint/tensor_source.h"
#include "runtime/placement/weight_placement.h"

namespace sluice {

// The weights of one stage, wherever they lie: a prefix of each unit (a layer,
// or a section of the head) stays in memory, the rest is read from the stage's
// image on disk into one of a few slots, sweep after sweep.
//
// Units are used in the order that BeginSweep tells, each Acquired and
// Released. What will be acquired next is read ahead, as far as there are
// slots. Used by one thread.
class WeightStore {
 public:
  struct Options {
    // All pointers must outlive the store.
    Backend* backend = nullptr;
    const TensorSource* source = nullptr;  // while loading only
    LayerRange layers;
    // Where each layer's bytes lie, and those of the head's sections.
    std::vector<UnitPlacement> units;
    // Slots for what is streamed, 2 or more to read further ahead, and what of
    // a unit each has room for; 0: nothing is.
    int slots = 2;
    size_t slot_bytes = 0;
    // Whether to read ahead at all.
    bool overlap = true;
    MemoryBudget* memory = nullptr;
    // Copies from and to host memory, which is pinned for it; may be null.
    Device* copies = nullptr;
    // With a disk share.
    const ImageStore* images = nullptr;
    IoEngine* io = nullptr;
    // Adds the seconds that Acquire waited.
    double* stall_seconds = nullptr;
    uint64_t* read_bytes = nullptr;  // adds what the disk carried for sweeps
    // With a device share: gets each unit's bytes from its beginning that are
    // to live on the device. They leave host memory then, and what Acquire
    // shows of them is undefined.
    std::function<absl::Status(int unit, std::span<const std::byte> bytes)>
        to_device;
  };
  using Progress = std::function<absl::Status(uint64_t bytes)>;

  // Reads, converts and packs what has no image yet; fills memory. Errors as in
  // TensorSource, ImageStore and MemoryBudget; progress() may stop it.
  static absl::StatusOr<std::unique_ptr<WeightStore>> Load(
      const Options& options, const Progress& progress);
  ~WeightStore();

  int num_units() const { return static_cast<int>(options_.units.size()); }
  bool streams() const { return options_.slot_bytes > 0; }
  // All weights, and those in host memory.
  uint64_t bytes() const { return bytes_; }
  uint64_t resident_bytes() const { return resident_bytes_; }
  // Those that went to the device.
  uint64_t device_bytes() const { return device_bytes_; }
  const std::vector<UnitPlacement>& placement() const { return options_.units; }

  // A sweep begins, as in UnitOrder: the units of the one before were all used.
  void BeginSweep(int layer_passes, int head_passes);
  // Waits until the unit's weights are there. The first time that a unit comes
  // from disk it is checked: kDataLoss, and the damaged image is removed.
  absl::StatusOr<ImageView> Acquire(int unit);
  void Release(int unit);
  // Lets the reading ahead begun by the last Release go on up to this share of
  // its unit: called before each micro-batch of a layer, so that other traffic
  // on the same wire does not wait behind a whole layer.
  void ReadAhead(double share);
  // Stops reading ahead (the next Acquire is of unit 0, whatever comes first).
  void Rewind();

 private:
  struct Unit {
    std::string name;
    HostBuffer resident;
    size_t resident_begin = 0;  // image offset: what lies before is on a device
    std::unique_ptr<ImageFile> image;
    bool checked = false;
    int held_slot = -1;  // between Acquire and Release, if streamed
    // The part of the image that is streamed: from the part (panel) in which
    // the resident bytes end. Image offsets.
    size_t split = 0;
    size_t slot_begin = 0;  // split, down to a disk block
    size_t read_begin = 0;  // where the resident bytes end
  };
  struct Slot {
    HostBuffer buffer;
    int unit = -1;      // -1: free
    size_t issued = 0;  // image offset up to which reads are on their way
    std::unique_ptr<IoCompletion> done;
  };

  explicit WeightStore(const Options& options) : options_(options) {}
  absl::Status LoadUnits(const Progress& progress);
  absl::Status LoadUnit(int index, const Progress& progress);
  // Reads what is to stay in memory of a unit's image, and checks that.
  absl::Status ReadResident(int index, const std::string& label,
                            const ImageFile& image);
  absl::Status Pack(int index, const Progress& progress, const ImageWindow& to);
  absl::Status MoveToDevice(int index);
  void Begin(Slot& slot, int unit);
  void Issue(Slot& slot, size_t end);
  absl::Status CheckStreamed(Unit& unit, const Slot& slot);
  ImageView View(const Unit& unit, const Slot* slot) const;
  // Has order_ stand at a unit that is streamed, or before the next sweep.
  void SkipResident();
  bool IsStreamed(int unit) const {
    return units_[unit].split < options_.units[unit].bytes;
  }

  const Options options_;
  std::vector<Unit> units_;
  std::vector<Slot> slots_;
  uint64_t bytes_ = 0;
  uint64_t resident_bytes_ = 0;
  uint64_t device_bytes_ = 0;
  UnitOrder order_{1, 0};    // stands at the unit to be begun next
  std::deque<int> filling_;  // slots not yet acquired, in order of use
};

}  // namespace sluice
