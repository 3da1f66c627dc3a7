#include "runtime/memory/device.h"

#include <algorithm>

#include "common/blocks.h"
#include "common/status_macros.h"
#include "runtime/memory/disk/disk_file.h"

namespace sluice {

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(charge_, other.charge_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (device_ != nullptr) device_->GiveBack(data_, RoundUpToDiskBlock(bytes_));
}

absl::StatusOr<DeviceBuffer> Device::Allocate(const std::string& name,
                                              size_t bytes) {
  const size_t whole = RoundUpToDiskBlock(std::max<size_t>(bytes, 1));
  DeviceBuffer buffer;
  SLUICE_ASSIGN_OR_RETURN(buffer.charge_, budget_->Charge(name, whole));
  SLUICE_ASSIGN_OR_RETURN(buffer.data_, Take(name, whole));
  buffer.device_ = this;
  buffer.bytes_ = std::max<size_t>(bytes, 1);
  return buffer;
}

}  // namespace sluice
