#include "runtime/kv/kv_arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/kv/sequence_pages.h"

namespace sluice {

size_t KvLayout::block_elements() const {
  return static_cast<size_t>(head_dim) * kPageTokens;
}

size_t KvLayout::layer_page_bytes() const {
  return 2 * num_kv_heads * block_elements() * element_bytes();
}

absl::StatusOr<std::unique_ptr<KvArena>> KvArena::Create(const KvLayout& layout,
                                                         int64_t num_pages,
                                                         MemoryBudget* budget) {
  std::unique_ptr<KvArena> arena(new KvArena(layout, num_pages));
  const size_t bytes = layout.page_bytes() * num_pages + kSlackBytes;
  SLUICE_ASSIGN_OR_RETURN(arena->charge_, budget->Charge("kv cache", bytes));
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", bytes,
                     " bytes for the KV cache: ", std::strerror(errno)));
  }
  // Fewer TLB misses; a kernel without huge pages says no, which is fine.
  madvise(base, bytes, MADV_HUGEPAGE);
  arena->base_ = static_cast<std::byte*>(base);
  arena->mapped_ = bytes;
  return arena;
}

KvArena::~KvArena() {
  if (base_ != nullptr) munmap(base_, mapped_);
}

}  // namespace sluice
