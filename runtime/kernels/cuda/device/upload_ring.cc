#include "runtime/kernels/cuda/device/upload_ring.h"

#include <algorithm>
#include <cstring>

#include "common/blocks.h"
#include "common/status_macros.h"
#include "runtime/kernels/cuda/device/cuda_status.h"

namespace sluice {
namespace {

constexpr size_t kAlignment = GpuLimits::kUploadAlignment;

}  // namespace

absl::StatusOr<std::unique_ptr<UploadRing>> UploadRing::Create(
    const Options& options) {
  std::unique_ptr<UploadRing> self(new UploadRing(options));
  self->part_bytes_ =
      RoundUpTo(std::max<size_t>(options.max_bytes, 1), kAlignment);
  const size_t bytes = kParts * self->part_bytes_;
  SLUICE_ASSIGN_OR_RETURN(
      self->host_,
      HostBuffer::Create("workspace", bytes, options.host, options.device));
  SLUICE_ASSIGN_OR_RETURN(self->device_,
                          options.device->Allocate("workspace", bytes));
  for (cudaEvent_t& event : self->copied_) {
    SLUICE_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                   "making an event"));
  }
  return self;
}

UploadRing::~UploadRing() {
  // Copies from memory that is given back must be done.
  cudaStreamSynchronize(options_.stream);
  for (const cudaEvent_t event : copied_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

int UploadRing::Find(std::span<const std::byte> content) const {
  const int count = static_cast<int>(entries_.size());
  for (int i = 0; i < count; ++i) {
    const int at = (next_ + i) % count;
    const Entry& entry = entries_[at];
    if (entry.bytes == content.size() &&
        std::memcmp(host_.as<std::byte>() + entry.offset, content.data(),
                    content.size()) == 0) {
      return at;
    }
  }
  return -1;
}

absl::Status UploadRing::NextPart() {
  SLUICE_RETURN_IF_ERROR(CudaStatus(
      cudaEventRecord(copied_[part_], options_.stream), "recording an event"));
  part_ = (part_ + 1) % kParts;
  used_ = 0;
  // The part's earlier entries will be overwritten.
  const size_t begin = part_ * part_bytes_;
  while (!entries_.empty() && entries_.front().offset >= begin &&
         entries_.front().offset < begin + part_bytes_) {
    entries_.pop_front();
    if (next_ > 0) --next_;
  }
  return CudaStatus(cudaEventSynchronize(copied_[part_]),
                    "waiting for the device to have read what a step needs");
}

absl::StatusOr<const std::byte*> UploadRing::Put(
    std::span<const std::byte> content) {
  if (content.size() > part_bytes_) {
    return InvalidArgument("a step's data of ", content.size(),
                           " bytes, beyond ", part_bytes_);
  }
  if (placed_ != nullptr) {
    for (const Placed& placed : *placed_) {
      if (std::equal(content.begin(), content.end(), placed.content.begin(),
                     placed.content.end())) {
        return placed.at;
      }
    }
    return absl::InternalError("a recorded step asks for data of another");
  }
  int at = Find(content);
  if (at < 0) {
    if (used_ + content.size() > part_bytes_) {
      SLUICE_RETURN_IF_ERROR(NextPart());
    }
    const Entry entry = {part_ * part_bytes_ + used_, content.size()};
    std::byte* const from = host_.as<std::byte>() + entry.offset;
    std::copy(content.begin(), content.end(), from);
    SLUICE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(device_.as<std::byte>() + entry.offset, from,
                                   content.size(), cudaMemcpyHostToDevice,
                                   options_.stream),
                   "copying what a step needs to the device"));
    used_ += RoundUpTo(content.size(), kAlignment);
    at = static_cast<int>(entries_.size());
    entries_.push_back(entry);
  }
  next_ = at + 1;
  return device_.as<std::byte>() + entries_[at].offset;
}

}  // namespace sluice
