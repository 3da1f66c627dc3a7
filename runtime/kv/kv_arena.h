#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/types.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// How a page lies in memory, for one layer: for each KV head, K transposed as
// [head_dim][kPageTokens], then V as [kPageTokens][head_dim]. With K
// transposed, the scores of neighbouring positions are neighbouring lanes: no
// horizontal sums, and each score is summed in the same order whether it is
// computed for one query or for many.
struct KvLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kFloat32;

  size_t element_bytes() const { return dtype == DType::kFloat32 ? 4 : 2; }
  // Elements from a head's K to its V, and from that V to the next head's K.
  size_t block_elements() const;
  // Of one layer, and of all layers.
  size_t layer_page_bytes() const;
  size_t page_bytes() const { return layer_page_bytes() * num_layers; }
};

// The K and V of all sequences of a stage in host memory, layer by layer.
// Reserved at once; the operating system backs a page when it is first
// written. Not thread-safe to create, free to use from any thread.
class KvArena {
 public:
  // Charges all of it to `budget` as "kv cache". kResourceExhausted if that
  // fails, or if the address space cannot be had.
  static absl::StatusOr<std::unique_ptr<KvArena>> Create(const KvLayout& layout,
                                                         int64_t num_pages,
                                                         MemoryBudget* budget);
  ~KvArena();
  KvArena(const KvArena&) = delete;
  KvArena& operator=(const KvArena&) = delete;

  const KvLayout& layout() const { return layout_; }
  int64_t num_pages() const { return num_pages_; }

  // K of a head in a page; its V follows block_elements() later.
  void* K(int32_t layer, int64_t page, int32_t kv_head) const {
    return base_ + (layer * num_pages_ + page) * layout_.layer_page_bytes() +
           2 * kv_head * layout_.block_elements() * layout_.element_bytes();
  }

  // Bytes read past the end of the last V by kernels that load whole vectors.
  static constexpr size_t kSlackBytes = 256;

 private:
  KvArena(const KvLayout& layout, int64_t num_pages)
      : layout_(layout), num_pages_(num_pages) {}
  KvLayout layout_;
  int64_t num_pages_;
  std::byte* base_ = nullptr;
  size_t mapped_ = 0;
  MemoryCharge charge_;
};

}  // namespace sluice
