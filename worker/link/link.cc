#include "worker/link/link.h"

namespace sluice {

absl::string_view LinkTransportName(LinkTransport transport) {
  return transport == LinkTransport::kNccl ? "nccl" : "grpc";
}

}  // namespace sluice
