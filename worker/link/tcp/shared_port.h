#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/host/file_descriptor.h"
#include "common/threads/deadline.h"
#include "common/threads/thread.h"
#include "worker/link/tcp/tcp_connection.h"

namespace sluice {

class TcpLinks;

// The one port of a worker. A thread accepts its connections and hands on each
// by its first byte: those of links, when they have shown their id, to the
// transport, all others to gRPC. Those that say nothing are closed after a
// while, and earlier if there are many.
class SharedPort {
 public:
  // Gets connections that do not carry links, with all that they have said
  // unread. Runs on the port's thread.
  using Other = std::function<void(FileDescriptor)>;

  // Listens on all addresses of "host:port". Port 0 takes a free one.
  // kUnavailable says why that can't be. `links` must outlive the port.
  static absl::StatusOr<std::unique_ptr<SharedPort>> Listen(
      const std::string& address, TcpLinks* links, Other other,
      absl::Duration patience = absl::Seconds(10));
  // Closes the port and the connections that have not been handed on.
  ~SharedPort();

  int port() const { return port_; }
  // The limit of connections that have not said yet what they are; the oldest
  // gives way to a new one.
  static constexpr size_t kMaxUndecided = 64;

 private:
  struct Connection {
    FileDescriptor fd;
    Deadline deadline = Deadline::Never();
    // What it has said, if it is one of links: its first byte has shown it.
    bool is_link = false;
    char said[kPreambleBytes];
    size_t bytes = 0;
  };

  SharedPort(TcpLinks* links, Other other, absl::Duration patience)
      : links_(links), other_(std::move(other)), patience_(patience) {}

  void Run();
  void Accept(int listener);
  // Reads on; returns false if the connection is done with: handed on or lost.
  bool Read(Connection* connection);

  TcpLinks* const links_;
  const Other other_;
  const absl::Duration patience_;
  std::vector<FileDescriptor> listeners_;
  int port_ = 0;
  FileDescriptor stop_;  // an eventfd
  // These are used by the thread only.
  std::list<Connection> undecided_;  // the oldest first
  Deadline accepting_ = Deadline::In(absl::ZeroDuration());

  Thread thread_;
};

}  // namespace sluice
