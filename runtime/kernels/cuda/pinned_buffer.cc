#include "runtime/kernels/cuda/pinned_buffer.h"

#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/kernels/cuda/cuda_status.h"

namespace sluice {

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(charge_, other.charge_);
  return *this;
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

absl::StatusOr<PinnedBuffer> PinnedBuffer::Create(const std::string& name,
                                                  size_t bytes,
                                                  MemoryBudget* budget) {
  PinnedBuffer buffer;
  SLUICE_ASSIGN_OR_RETURN(buffer.charge_, budget->Charge(name, bytes));
  SLUICE_RETURN_IF_ERROR(
      CudaStatus(cudaHostAlloc(&buffer.data_, bytes, cudaHostAllocPortable),
                 absl::StrCat("pinning ", bytes, " bytes for ", name)));
  buffer.bytes_ = bytes;
  return buffer;
}

}  // namespace sluice
