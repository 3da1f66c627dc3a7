#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice {

// A small HTTP server for scrapes and probes: it answers GET and HEAD of fixed
// paths, and closes. One thread serves all connections and never waits for one,
// so a peer that sends half a request, or does not read its answer, delays no
// other.
class HttpServer {
 public:
  struct Answer {
    int code = 200;
    std::string content_type = "text/plain; charset=utf-8";
    std::string body;
  };
  struct Options {
    std::string host;
    int port = 0;  // 0: a free one
    // Answers a path without its query. Called on the server's thread.
    std::function<Answer(absl::string_view path)> answer;
    // A connection is closed after this time, whatever its state.
    absl::Duration timeout = absl::Seconds(10);
    // Beyond this number, a new connection replaces the oldest.
    size_t max_connections = 256;
  };
  // kUnavailable if the address can't be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options);
  ~HttpServer();

  int port() const;

 private:
  class Loop;
  explicit HttpServer(std::unique_ptr<Loop> loop);
  const std::unique_ptr<Loop> loop_;
};

}  // namespace sluice
