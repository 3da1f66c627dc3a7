#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/kernels/device_choice.h"
#include "worker/link/payload_channel.h"

namespace sluice {

// What a worker's user says about its links, as in --link.
enum class LinkChoice {
  kAuto,  // NCCL if this worker computes on a GPU and has libnccl, else gRPC;
          // gRPC to a worker that has no NCCL
  kGrpc,
  kNccl,  // or nothing
};

// What may carry activations to the stages next to this one, and where NCCL and
// CUDA are looked for (as dlopen does).
struct LinkSetup {
  LinkChoice choice = LinkChoice::kAuto;
  std::string nccl_library = "libnccl.so.2";
  std::string cuda_library = "libcuda.so.1";
};

// "auto", "grpc" or "nccl"; kInvalidArgument for others.
absl::StatusOr<LinkChoice> ParseLinkChoice(absl::string_view name);

// What carries the payloads of a worker's NCCL links, from the GPU that it
// computes on, or else from the first one; null if it has none. An
// error, as of CreateNcclTransport, only with LinkChoice::kNccl.
absl::StatusOr<std::unique_ptr<PayloadTransport>> OpenPayloads(
    const LinkSetup& setup, const DeviceChoice& device);

}  // namespace sluice
