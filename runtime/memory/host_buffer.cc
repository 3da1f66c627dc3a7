#include "runtime/memory/host_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "common/status_macros.h"
#include "common/threads/thread.h"

namespace sluice {
namespace {
constexpr size_t kCacheLine = 64;
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
// More threads than these don't fill memory faster.
constexpr size_t kMaxTouchers = 8;
// The bytes that are worth a thread.
constexpr size_t kTouchBytes = size_t{64} << 20;

size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

bool IsMapped(size_t bytes) { return bytes >= kHugePage; }

// Maps zeroes, which the system backs a page at a time where they are first
// touched. Returns null if that fails.
void* Map(size_t bytes) {
  const size_t size = RoundUp(bytes, kPage);
  if (size < bytes || size + kHugePage < size) return nullptr;
  void* mapping = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  // The parts before the first huge page and behind the end are unmapped.
  auto* const begin = static_cast<std::byte*>(mapping);
  const size_t before = RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePage) -
                        reinterpret_cast<uintptr_t>(begin);
  if (before > 0) munmap(begin, before);
  if (before < kHugePage) munmap(begin + before + size, kHugePage - before);
  madvise(begin + before, size, MADV_HUGEPAGE);
  return begin + before;
}

void Free(void* data, size_t bytes) {
  if (data != nullptr && IsMapped(bytes)) {
    munmap(data, RoundUp(bytes, kPage));
  } else {
    std::free(data);
  }
}

}  // namespace

void Touch(std::span<std::byte> memory) {
  const size_t threads = std::min<size_t>(
      {kMaxTouchers, std::max<size_t>(1, std::thread::hardware_concurrency()),
       memory.size() / kTouchBytes});
  if (threads < 2) return;
  const size_t share = (memory.size() / threads / kHugePage + 1) * kHugePage;
  std::vector<Thread> touching;
  for (size_t begin = 0; begin < memory.size(); begin += share) {
    const size_t end = std::min(memory.size(), begin + share);
    touching.emplace_back("touch", [memory, begin, end] {
      for (size_t i = begin; i < end; i += kPage) {
        // Each byte is written back as it is, so that the contents stay.
        auto* const byte = reinterpret_cast<volatile std::byte*>(&memory[i]);
        *byte = *byte;
      }
    });
  }
  for (Thread& thread : touching) thread.Join();
}

absl::StatusOr<HostBuffer> HostBuffer::Create(const std::string& name,
                                              size_t bytes,
                                              MemoryBudget* budget,
                                              Device* copies) {
  HostBuffer buffer;
  SLUICE_ASSIGN_OR_RETURN(buffer.charge_, budget->Charge(name, bytes));
  if (IsMapped(bytes)) {
    buffer.data_ = Map(bytes);
  } else {
    const size_t unit = bytes >= kPage ? kPage : kCacheLine;
    const size_t size = std::max(unit, RoundUp(bytes, unit));
    if (posix_memalign(&buffer.data_, unit, size) != 0) {
      buffer.data_ = nullptr;
    } else {
      std::memset(buffer.data_, 0, size);
    }
  }
  if (buffer.data_ == nullptr) {
    return ResourceExhausted("the system has no ", bytes,
                             " bytes of memory for ", name);
  }
  buffer.bytes_ = bytes;
  buffer.PinFor(copies);
  return buffer;
}

void HostBuffer::PinFor(Device* device) {
  if (device == nullptr || bytes_ < kPage) return;
  pin_.Release();
  // The buffer shares its pages with no other.
  const std::span<std::byte> pages = {as<std::byte>(), RoundUp(bytes_, kPage)};
  Touch(pages);
  pin_ = device->Pin(pages);
}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  if (this == &other) return *this;
  pin_.Release();
  Free(data_, bytes_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  charge_ = std::move(other.charge_);
  pin_ = std::move(other.pin_);
  return *this;
}

HostBuffer::~HostBuffer() {
  pin_.Release();
  Free(data_, bytes_);
}

}  // namespace sluice
