#include "runtime/kv/kv_arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "common/blocks.h"
#include "common/status_macros.h"
#include "runtime/memory/disk/disk_file.h"
#include "runtime/memory/host_buffer.h"

namespace sluice {

namespace {

absl::StatusOr<size_t> ArenaBytes(const KvLayout& layout, int64_t num_pages) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(layout.page_bytes(), num_pages, &bytes) ||
      __builtin_add_overflow(bytes, KvLayout::kSlackBytes, &bytes)) {
    return ResourceExhausted("a KV cache of ", num_pages, " pages of ",
                             layout.page_bytes(),
                             " bytes is beyond any memory");
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvArena>> KvArena::Create(const KvLayout& layout,
                                                         int64_t num_pages,
                                                         MemoryBudget* budget,
                                                         Device* copies) {
  std::unique_ptr<KvArena> arena(new KvArena(layout, num_pages));
  SLUICE_ASSIGN_OR_RETURN(const size_t bytes, ArenaBytes(layout, num_pages));
  SLUICE_ASSIGN_OR_RETURN(arena->charge_, budget->Charge("kv cache", bytes));
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return ResourceExhausted("cannot map ", bytes,
                             " bytes for the KV cache: ", std::strerror(errno));
  }
  // Huge pages save TLB misses; a kernel without them says no, which is fine.
  madvise(base, bytes, MADV_HUGEPAGE);
  arena->base_ = static_cast<std::byte*>(base);
  arena->mapped_ = bytes;
  if (copies != nullptr) {
    arena->pinned_ = true;
    // The mapping is of whole pages.
    const std::span<std::byte> pages = {arena->base_,
                                        RoundUpToDiskBlock(bytes)};
    Touch(pages);
    arena->pin_ = copies->Pin(pages);
  }
  return arena;
}

absl::StatusOr<std::unique_ptr<KvArena>> KvArena::CreateOn(
    Device* device, const KvLayout& layout, int64_t num_pages) {
  std::unique_ptr<KvArena> arena(new KvArena(layout, num_pages));
  SLUICE_ASSIGN_OR_RETURN(const size_t bytes, ArenaBytes(layout, num_pages));
  SLUICE_ASSIGN_OR_RETURN(arena->on_device_,
                          device->Allocate("kv cache", bytes));
  arena->base_ = arena->on_device_.as<std::byte>();
  return arena;
}

void KvArena::Trim() {
  if (mapped_ > 0 && !pinned_) madvise(base_, mapped_, MADV_DONTNEED);
}

KvArena::~KvArena() {
  pin_.Release();
  if (mapped_ > 0) munmap(base_, mapped_);
}

}  // namespace sluice
