#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/http/http_message.h"
#include "common/threads/mutex.h"
#include "coordinator/coordinator.h"
#include "proto/call_guard.h"

namespace sluice {

// The console: a page under /console/ that shows a coordinator and its jobs,
// and what the page asks, as JSON under /console/api/. Callers see and may do
// what they see and may do by gRPC. Thread-safe.
class Console {
 public:
  // `guard`, which may be null, must outlive it, and is the server's, too
  // (GuardHttp). `needs_token`: whether callers need one, so that a browser
  // does nothing by itself (see same_origin.h).
  Console(CallGuard* guard, bool needs_token);

  // Routes for a server that the console outlives. Until Open and after Close,
  // those under /console/api/ answer 503.
  std::vector<HttpRoute> Routes();

  // `coordinator` must live until Close, which waits for requests under way.
  void Open(Coordinator* coordinator);
  void Close();

 private:
  // Answers a request, by JSON.
  using Work = std::function<absl::StatusOr<std::string>(
      Coordinator* coordinator, const HttpRequest& request)>;
  HttpRoute Api(const char* method, absl::string_view path, Scope scope,
                Work work);
  HttpAnswer Answer(const HttpRequest& request, const Work& work);
  // Who asks; answered to all, so that the page can say what is needed.
  std::string Session(HttpRequest request) const;

  CallGuard* const guard_;
  const bool needs_token_;
  const std::string machine_;  // its name
  Mutex mu_;
  CondVar idle_;
  Coordinator* coordinator_ ABSL_GUARDED_BY(mu_) = nullptr;
  int busy_ ABSL_GUARDED_BY(mu_) = 0;  // requests under way
};

// Opens a console as long as it lives.
class OpenConsole {
 public:
  OpenConsole(Console* console, Coordinator* coordinator) : console_(console) {
    console->Open(coordinator);
  }
  ~OpenConsole() { console_->Close(); }
  OpenConsole(const OpenConsole&) = delete;
  OpenConsole& operator=(const OpenConsole&) = delete;

 private:
  Console* const console_;
};

}  // namespace sluice
