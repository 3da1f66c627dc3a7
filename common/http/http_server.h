#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/http/http_message.h"

namespace sluice {

class HttpTls;

// An HTTP/1.1 server of fixed routes, over TCP or TLS. One thread serves all
// connections and never waits for one, so a peer that sends half a request, or
// does not read its answer, delays no other; a few threads run the handlers.
// Requests that other servers could read in another way (two lengths, a length
// and chunks, several hosts) are refused, and the connection is closed.
class HttpServer {
 public:
  struct Options {
    std::string host;
    int port = 0;  // 0: a free one
    std::vector<HttpRoute> routes;
    // Sets request->caller, and says whether it may use a route of this scope;
    // called before the body is read, for every scope but kOpen, on the thread
    // of the connections. kUnauthenticated or kPermissionDenied if not. None:
    // all may do everything.
    std::function<absl::Status(HttpRequest* request, Scope scope)> authorize;
    std::shared_ptr<HttpTls> tls;  // none: in the clear
    // A request must have come after this time, and an answer must be read at
    // a rate of kSlowestReader at least.
    absl::Duration timeout = absl::Seconds(10);
    // Beyond this number, a new connection replaces the oldest.
    size_t max_connections = 512;
    int threads = 2;
  };
  // kUnavailable if the address can't be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options);
  // Ends connections, and waits for handlers that run.
  ~HttpServer();

  int port() const;

 private:
  class Loop;
  explicit HttpServer(std::unique_ptr<Loop> loop);
  const std::unique_ptr<Loop> loop_;
};

}  // namespace sluice
