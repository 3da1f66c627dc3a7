#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "runtime/memory/device.h"
#include "runtime/memory/host_buffer.h"

namespace sluice {

// Work space of a backend, where the backend computes: in host memory, or on a
// device that has memory of its own. Zeroed, aligned to 64 bytes. Move-only.
class WorkBuffer {
 public:
  WorkBuffer() = default;

  // Allocates on `device`; if that is null, in host memory, charged to `budget`
  // and pinned for `copies`, which may be null, too.
  static absl::StatusOr<WorkBuffer> Create(const std::string& name,
                                           size_t bytes, MemoryBudget* budget,
                                           Device* device,
                                           Device* copies = nullptr) {
    WorkBuffer buffer;
    if (device == nullptr) {
      SLUICE_ASSIGN_OR_RETURN(buffer.host_,
                              HostBuffer::Create(name, bytes, budget, copies));
    } else {
      SLUICE_ASSIGN_OR_RETURN(buffer.device_, device->Allocate(name, bytes));
    }
    return buffer;
  }

  void* data() const {
    return device_.data() != nullptr ? device_.data() : host_.data();
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data());
  }

 private:
  HostBuffer host_;
  DeviceBuffer device_;
};

}  // namespace sluice
