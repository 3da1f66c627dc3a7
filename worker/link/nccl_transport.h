#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/link/payload_channel.h"

namespace sluice {

// The options of payloads by ncclSend and ncclRecv between two GPUs, with a
// communicator of two for each link and epoch.
struct NcclOptions {
  std::string nccl_library = "libnccl.so.2";
  std::string cuda_library = "libcuda.so.1";
  int device = 0;  // the CUDA driver's index
};

// Loads the libraries and takes the device. kNotFound, kFailedPrecondition: a
// library or the device is missing, or too old; the message says which, and
// what to do. kInternal: CUDA does not work here.
absl::StatusOr<std::unique_ptr<PayloadTransport>> CreateNcclTransport(
    const NcclOptions& options);

}  // namespace sluice
