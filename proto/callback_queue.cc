#include "proto/callback_queue.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

namespace sluice {

void KeepCallbackQueue() {
  // An unreachable server that is never destroyed holds the queue.
  [[maybe_unused]] static const auto* const server = [] {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(new grpc::CallbackGenericService());
    return builder.BuildAndStart().release();
  }();
}

}  // namespace sluice
