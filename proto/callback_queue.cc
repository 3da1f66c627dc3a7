#include "proto/callback_queue.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

namespace sluice {

void KeepCallbackQueue() {
  // A server that nobody can reach, and that is never destroyed, holds it.
  [[maybe_unused]] static const auto* const server = [] {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(new grpc::CallbackGenericService());
    return builder.BuildAndStart().release();
  }();
}

}  // namespace sluice
