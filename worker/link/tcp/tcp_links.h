#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/host/file_descriptor.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "worker/link/tcp/tcp_connection.h"

namespace sluice {

// The receiving ends of a worker's TCP connections. Each expects one connection
// that shows its id, and has a thread that takes what comes by it. Thread-safe.
class TcpLinks {
 public:
  struct Options {
    std::string id;  // of NewId(), at the sender
    // Takes one frame. Runs on the thread, again and again; the first error
    // ends that. May be called once more while the end is being stopped.
    std::function<absl::Status(TcpConnection&)> take;
    // Called once, on the thread, with the first error, unless it is
    // kCancelled or the end was stopped before.
    std::function<void(const absl::Status&)> on_broken;
  };

  // A receiving end, which stops when the last reference goes.
  class End {
   public:
    // Expects no connection any more, and shuts the one down that came. Never
    // waits: a call of the callbacks may still be in progress.
    void Stop();

   private:
    friend class TcpLinks;
    explicit End(Options options) : options_(std::move(options)) {}
    bool Offer(FileDescriptor* socket);
    void Run();
    bool finished() const;

    Options options_;  // callbacks: used by the thread only
    mutable Mutex mu_;
    CondVar changed_;
    std::unique_ptr<TcpConnection> connection_ ABSL_GUARDED_BY(mu_);
    bool stopped_ ABSL_GUARDED_BY(mu_) = false;
    bool finished_ ABSL_GUARDED_BY(mu_) = false;
  };

  ~TcpLinks() { Stop(); }

  // A random id of kTcpIdBytes, which whoever has it may connect with.
  static absl::StatusOr<std::string> NewId();

  // kInvalidArgument: no id, or one that is expected already.
  absl::StatusOr<std::shared_ptr<End>> Expect(Options options);

  // Gives a connection that has shown `id`, of kTcpIdBytes, to the end that
  // expects it, or closes it; answers it in either case.
  void Take(absl::string_view id, FileDescriptor socket);

  // Stops all ends, also those that come later, and waits for their threads,
  // whose callbacks must outlive it. Called by the destructor too.
  void Stop();

 private:
  struct Playing {
    std::shared_ptr<End> end;
    Thread thread;
  };

  Mutex mu_;
  // Finished ends are removed when the next one comes.
  std::list<Playing> playing_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice
