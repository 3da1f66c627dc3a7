#pragma once

namespace sluice {

// Keeps gRPC's queue for callbacks, which all servers and channels of a process
// share, until the process ends. Otherwise the last server or channel to go
// ends its threads, and gRPC 1.51 then sometimes releases the queue once too
// often and aborts. Must be called before the first use of the callback API.
// Thread-safe.
void KeepCallbackQueue();

}  // namespace sluice
