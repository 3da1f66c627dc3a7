#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/kv/kv_groups.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/memory/device.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// K and V of a stage's sequences in the memory of host or device, of a group of
// layers, as [layer][page]. Reserved at once; the operating system backs a page
// when it is first written. Not thread-safe to create, free to use from any
// thread.
class KvArena {
 public:
  // Charges all of it, KvLayout::kSlackBytes included, to `budget` as "kv
  // cache". kResourceExhausted if that fails, or if the address space cannot be
  // had. With `copies`, the arena is pinned for that device (Device::Pin): then
  // the system backs all of it at once.
  static absl::StatusOr<std::unique_ptr<KvArena>> Create(
      const KvLayout& layout, int64_t num_pages, MemoryBudget* budget,
      Device* copies = nullptr);
  // Creates an arena in the memory of a device, which must outlive it. Errors
  // are those of Device::Allocate.
  static absl::StatusOr<std::unique_ptr<KvArena>> CreateOn(
      Device* device, const KvLayout& layout, int64_t num_pages);
  ~KvArena();
  KvArena(const KvArena&) = delete;
  KvArena& operator=(const KvArena&) = delete;

  // Returns the bytes of the first `pages` pages of all layers: those in use if
  // no other pages are.
  uint64_t BytesOf(int64_t pages) const {
    return static_cast<uint64_t>(pages) * layout_.page_bytes();
  }
  // Gives the memory backed so far back to the system, unless it is pinned or a
  // device's. REQUIRES: nobody needs its contents.
  void Trim();

  const KvLayout& layout() const { return layout_; }
  int64_t num_pages() const { return num_pages_; }

  // Page 0 of a layer; page p follows p * layout().layer_page_bytes() later.
  // `layer` counts from the group's first.
  std::byte* LayerBase(int32_t layer) const {
    return base_ + layer * num_pages_ * layout_.layer_page_bytes();
  }

 private:
  KvArena(const KvLayout& layout, int64_t num_pages)
      : layout_(layout), num_pages_(num_pages) {}
  KvLayout layout_;
  int64_t num_pages_;
  std::byte* base_ = nullptr;
  size_t mapped_ = 0;
  bool pinned_ = false;
  DeviceBuffer on_device_;
  MemoryCharge charge_;
  HostPin pin_;
};

// The arenas of a tier, one for each group of layers that has pages there.
struct KvArenas {
  ByKvGroup<std::unique_ptr<KvArena>> of;

  std::byte* LayerBase(KvGroups::Layer layer) const {
    return of[layer.group]->LayerBase(layer.index);
  }
  bool empty() const {
    return of[KvGroup::kAll] == nullptr && of[KvGroup::kWindow] == nullptr;
  }
  void Trim() const {
    for (const auto& arena : of) {
      if (arena != nullptr) arena->Trim();
    }
  }
};

}  // namespace sluice
