#pragma once

namespace sluice {

// Keeps gRPC's queue for callbacks, which all servers and channels of a process
// share, until the process ends. Otherwise the last of them to go ends the
// queue's threads, and gRPC 1.51 then sometimes releases the queue once too
// often and aborts. To be called before the first use of the callback API;
// thread-safe.
void KeepCallbackQueue();

}  // namespace sluice
