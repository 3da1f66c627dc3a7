#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/collective/collective.h"

namespace sluice {

// The exchange between ranks of this process, each on a GPU of its own, by
// ncclAllGather. A rank's rows lie on its GPU if they come with a stream, and
// the exchange then takes its turn in that; else they lie in host memory, as
// with emulated devices, and Gather() waits until they have been there and
// back.
struct NcclGroupOptions {
  std::string nccl_library = "libnccl.so.2";
  std::string cuda_library = "libcuda.so.1";
  std::vector<int> devices;  // the CUDA driver's index of each rank's GPU
};

// Loads the libraries and takes the devices; the ranks connect when they first
// exchange. The errors of CreateNcclTransport.
absl::StatusOr<std::unique_ptr<CollectiveGroup>> CreateNcclGroup(
    const NcclGroupOptions& options);

}  // namespace sluice
