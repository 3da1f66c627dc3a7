#include "worker/link/link_choice.h"

#include "common/host/logging.h"
#include "common/status_macros.h"
#include "worker/link/nccl_group.h"
#include "worker/link/nccl_transport.h"

namespace sluice {

absl::StatusOr<LinkChoice> ParseLinkChoice(absl::string_view name) {
  if (name == "auto") return LinkChoice::kAuto;
  if (name == "grpc") return LinkChoice::kGrpc;
  if (name == "nccl") return LinkChoice::kNccl;
  if (name == "tcp") return LinkChoice::kTcp;
  return InvalidArgument("no link \"", name,
                         "\": expected auto, grpc, nccl or tcp");
}

absl::StatusOr<std::unique_ptr<PayloadTransport>> OpenPayloads(
    const LinkSetup& setup, const DeviceChoice& device) {
  if (setup.choice == LinkChoice::kGrpc || setup.choice == LinkChoice::kTcp) {
    return nullptr;
  }
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
  LogInfo("no links by NCCL: ", transport.status().message());
  return nullptr;
}

std::unique_ptr<TcpLinks> OpenTcpLinks(const LinkSetup& setup) {
  const bool wanted =
      setup.choice == LinkChoice::kAuto || setup.choice == LinkChoice::kTcp;
  return wanted && setup.has_port ? std::make_unique<TcpLinks>() : nullptr;
}

MakeExchange ExchangeOf(const LinkSetup& setup,
                        const std::vector<DeviceChoice>& ranks) {
  if (ranks.empty()) return nullptr;
  const bool on_gpus = ranks[0].backend == BackendKind::kCuda;
  if (!on_gpus && setup.choice != LinkChoice::kNccl) return nullptr;
  NcclGroupOptions options = {.nccl_library = setup.nccl_library,
                              .cuda_library = setup.cuda_library};
  for (size_t i = 0; i < ranks.size(); ++i) {
    // Ranks that compute elsewhere have a GPU each to exchange by.
    options.devices.push_back(on_gpus ? ranks[i].ordinal : static_cast<int>(i));
  }
  return [options] {
    return Annotate(CreateNcclGroup(options),
                    "ranks on several GPUs exchange by NCCL");
  };
}

}  // namespace sluice
