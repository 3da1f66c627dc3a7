#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/host/file_descriptor.h"

namespace sluice {

// What a link's connection begins with: kTcpMagic and the id, from the sender,
// and one byte of answer. HTTP/2 begins with 'P', TLS with 0x16.
inline constexpr char kTcpMagic[] = "\xffsluice\x01";
inline constexpr size_t kTcpMagicBytes = sizeof(kTcpMagic) - 1;
inline constexpr size_t kTcpIdBytes = 32;
inline constexpr size_t kPreambleBytes = kTcpMagicBytes + kTcpIdBytes;
inline constexpr char kTcpExpected = '+';
inline constexpr char kTcpUnknown = '-';  // nobody expects this id

// Sets what all connections to and from a worker have: no delay, and an error
// if the peer has not acknowledged anything for as long as gRPC waits.
void SetUpConnection(int fd);

// The TCP connection of one link, by which frames go one way. Calls wait; Stop
// ends them, from any thread. Else confined to one thread.
class TcpConnection {
 public:
  // `socket` is connected.
  explicit TcpConnection(FileDescriptor socket);

  // Connects to `peer`, as grpc::ClientContext::peer() names it, and shows
  // `id`. kUnimplemented: there is no such connection to what listens there;
  // kUnavailable: the receiver does not expect this id any more.
  static absl::StatusOr<std::unique_ptr<TcpConnection>> Connect(
      const std::string& peer, const std::string& id, absl::Duration timeout);

  // Sends the parts one after the other. kUnavailable: the connection broke, or
  // was stopped.
  absl::Status Send(std::span<iovec> parts);
  // Fills the memory. kUnavailable: as Send; kCancelled: the sender has closed
  // the connection, or it was stopped.
  absl::Status Receive(void* to, size_t bytes);

  // Shuts the connection down: calls fail from now on. Never waits.
  void Stop();

 private:
  const FileDescriptor socket_;
};

}  // namespace sluice
