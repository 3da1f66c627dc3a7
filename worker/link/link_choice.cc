#include "worker/link/link_choice.h"

#include "common/host/logging.h"
#include "common/status_macros.h"
#include "worker/link/nccl_transport.h"

namespace sluice {

absl::StatusOr<LinkChoice> ParseLinkChoice(absl::string_view name) {
  if (name == "auto") return LinkChoice::kAuto;
  if (name == "grpc") return LinkChoice::kGrpc;
  if (name == "nccl") return LinkChoice::kNccl;
  return InvalidArgument("no link \"", name, "\": expected auto, grpc or nccl");
}

absl::StatusOr<std::unique_ptr<PayloadTransport>> OpenPayloads(
    const LinkSetup& setup, const DeviceChoice& device) {
  if (setup.choice == LinkChoice::kGrpc) return nullptr;
  // NCCL would only be a detour for activations that a CPU has computed.
  if (setup.choice == LinkChoice::kAuto &&
      device.backend != BackendKind::kCuda) {
    return nullptr;
  }
  absl::StatusOr<std::unique_ptr<PayloadTransport>> transport =
      CreateNcclTransport({.nccl_library = setup.nccl_library,
                           .cuda_library = setup.cuda_library,
                           .device = device.ordinal});
  if (transport.ok()) return transport;
  if (setup.choice == LinkChoice::kNccl) {
    return Annotate(transport.status(), "--link nccl");
  }
  LogInfo("links go by gRPC: ", transport.status().message());
  return nullptr;
}

}  // namespace sluice
