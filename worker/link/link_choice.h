#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/collective/collective.h"
#include "runtime/kernels/device_choice.h"
#include "worker/link/payload_channel.h"
#include "worker/link/tcp/tcp_links.h"

namespace sluice {

// A worker's --link flag.
enum class LinkChoice {
  kAuto,  // NCCL if this worker computes on a GPU and has libnccl, else TCP;
          // gRPC to a worker that has neither
  kGrpc,
  kNccl,  // fails without NCCL
  kTcp,   // only TCP
};

// The allowed transports of activations to the stages next to this one, and the
// paths of NCCL and CUDA (as for dlopen).
struct LinkSetup {
  LinkChoice choice = LinkChoice::kAuto;
  std::string nccl_library = "libnccl.so.2";
  std::string cuda_library = "libcuda.so.1";
  // Whether the worker's server is a LinkServer that takes TCP connections of
  // links, without which there are none.
  bool has_port = false;
};

// Parses "auto", "grpc", "nccl" or "tcp"; kInvalidArgument for others.
absl::StatusOr<LinkChoice> ParseLinkChoice(absl::string_view name);

// Opens the transport of a worker's NCCL links, on the GPU that it computes on,
// or else on the first one; null if it has none. An error, as of
// CreateNcclTransport, only with LinkChoice::kNccl.
absl::StatusOr<std::unique_ptr<PayloadTransport>> OpenPayloads(
    const LinkSetup& setup, const DeviceChoice& device);

// Makes the receiving ends of a worker's TCP links; null if it is to have none.
std::unique_ptr<TcpLinks> OpenTcpLinks(const LinkSetup& setup);

// Makes what the ranks of a worker exchange columns by: NCCL between GPUs, or
// if it is asked for; null, for the memory of the process, else. NCCL that is
// not there is an error, as of CreateNcclGroup.
using MakeExchange =
    std::function<absl::StatusOr<std::unique_ptr<CollectiveGroup>>()>;
MakeExchange ExchangeOf(const LinkSetup& setup,
                        const std::vector<DeviceChoice>& ranks);

}  // namespace sluice
