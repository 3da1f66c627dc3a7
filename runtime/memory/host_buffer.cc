#include "runtime/memory/host_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {
namespace {
constexpr size_t kCacheLine = 64;
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
}  // namespace

absl::StatusOr<HostBuffer> HostBuffer::Create(const std::string& name,
                                              size_t bytes,
                                              MemoryBudget* budget,
                                              Device* copies) {
  HostBuffer buffer;
  SLUICE_ASSIGN_OR_RETURN(buffer.charge_, budget->Charge(name, bytes));
  const size_t alignment = bytes >= kHugePage ? kHugePage
                           : bytes >= kPage   ? kPage
                                              : kCacheLine;
  const size_t unit = std::min(alignment, kPage);
  const size_t size = std::max(unit, (bytes + unit - 1) / unit * unit);
  if (size < bytes || posix_memalign(&buffer.data_, alignment, size) != 0) {
    buffer.data_ = nullptr;
    return absl::ResourceExhaustedError(absl::StrCat(
        "the system has no ", bytes, " bytes of memory for ", name));
  }
  buffer.bytes_ = bytes;
  if (alignment == kHugePage) madvise(buffer.data_, size, MADV_HUGEPAGE);
  std::memset(buffer.data_, 0, size);
  buffer.PinFor(copies);
  return buffer;
}

void HostBuffer::PinFor(Device* device) {
  if (device == nullptr || bytes_ < kPage) return;
  pin_.Release();
  // Its pages are nobody else's.
  pin_ = device->Pin({as<std::byte>(), (bytes_ + kPage - 1) / kPage * kPage});
}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  if (this == &other) return *this;
  pin_.Release();
  std::free(data_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  charge_ = std::move(other.charge_);
  pin_ = std::move(other.pin_);
  return *this;
}

HostBuffer::~HostBuffer() {
  pin_.Release();
  std::free(data_);
}

}  // namespace sluice
