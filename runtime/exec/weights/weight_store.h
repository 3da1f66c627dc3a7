#pragma once

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
#include "runtime/exec/stream_context.h"
#include "runtime/exec/sweep_stats.h"
#include "runtime/exec/weights/packed_file.h"
#include "runtime/exec/weights/packed_store.h"
#include "runtime/exec/weights/unit_order.h"
#include "runtime/exec/weights/weights.h"
#include "runtime/memory/disk/io_completion.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/model/checkpoint/tensor_source.h"
#include "runtime/placement/weight_placement.h"
#include "runtime/placement/weight_units.h"
#include "runtime/weights/packed_view.h"
#include "runtime/weights/packed_window.h"

namespace sluice {

// Weights in host memory and on disk: a prefix of each unit stays in memory,
// the rest is read from the unit's packed file on disk into one of a few slots.
class WeightStore : public Weights {
 public:
  struct Options {
    // All pointers must outlive the store.
    StreamContext context;
    const TensorSource* source = nullptr;  // while loading only
    // The places of the bytes of each unit of the context.
    std::vector<UnitPlacement> units;
    // The slots for streamed weights, 2 or more to read further ahead, and the
    // bytes of each; 0: nothing is streamed.
    int slots = 2;
    size_t slot_bytes = 0;
    const PackedStore* packed_files = nullptr;  // with a disk share
    // Gets the first bytes of each unit, those that are to live on a device, if
    // there is one. They leave host memory then, and what Acquire shows of them
    // is undefined.
    std::function<absl::Status(int unit, std::span<const std::byte> bytes)>
        to_device;
  };
  using Progress = std::function<absl::Status(uint64_t bytes)>;

  // Reads, converts and packs what has no packed unit yet; fills memory. Errors
  // as in TensorSource, PackedStore and MemoryBudget; progress() may stop it.
  static absl::StatusOr<std::unique_ptr<WeightStore>> Load(
      const Options& options, const Progress& progress);
  ~WeightStore() override;

  int num_units() const { return static_cast<int>(options_.units.size()); }
  const std::vector<UnitPlacement>& placement() const { return options_.units; }

  void BeginStep(int layer_passes, int head_passes) override;
  absl::StatusOr<PackedView> Acquire(int unit) override;
  void ReadAhead(double share) override;
  absl::Status Skip(int unit) override;
  void HoldBack(int begin, int end, bool next_time) override {
    order_.HoldBack(begin, end, next_time);
  }
  absl::Status Release(int unit) override;
  bool layers_stay() const override;
  void Reset() override;
  StreamTotals totals() const override { return totals_; }

 private:
  struct Unit : Cut {
    size_t begin = 0;  // in its packed unit
    int packed = 0;    // that one
    HostBuffer resident;
    size_t resident_begin = 0;  // what lies before is on a device
    bool skipped = false;       // the next time that it is next
  };
  struct Slot {
    HostBuffer buffer;
    int unit = -1;      // -1: free
    size_t issued = 0;  // packed offset up to which reads are on their way
    std::unique_ptr<IoCompletion> done;
  };

  bool streams() const { return options_.slot_bytes > 0; }
  explicit WeightStore(const Options& options) : options_(options) {}
  absl::Status LoadUnits(const Progress& progress);
  // Loads the units of a packed unit.
  absl::Status LoadPacked(int packed, const Progress& progress);
  // Reads what is to stay in memory of a unit, and checks that.
  absl::Status ReadResident(int index, const PackedFile& packed);
  // Packs what a window of a packed unit has.
  absl::Status Pack(int packed, const Progress& progress,
                    const PackedWindow& to);
  absl::Status MoveToDevice(int index);
  // Return what a packed unit is called on disk, and in a budget.
  std::string NameOf(int packed) const;
  std::string LabelOf(int packed) const;
  const WeightUnits& known() const { return *options_.context.units; }
  int num_layer_units() const {
    return known().first[options_.context.layers.size()];
  }
  void Begin(Slot& slot, int unit);
  void Issue(Slot& slot, size_t end);
  absl::Status CheckStreamed(const Unit& unit, const Slot& slot);
  PackedView View(const Unit& unit, const Slot* slot) const;
  // Has order_ stand at a unit that is streamed, or before the next sweep.
  void SkipResident();

  const Options options_;
  StreamTotals totals_;
  std::vector<Unit> units_;
  std::vector<std::unique_ptr<PackedFile>> files_;  // of packed units, on disk
  std::vector<Slot> slots_;
  UnitOrder order_{1, 0};    // stands at the unit to be begun next
  std::deque<int> filling_;  // slots not yet acquired, in order of use
};

}  // namespace sluice
