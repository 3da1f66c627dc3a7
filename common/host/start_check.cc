#include "common/host/start_check.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <new>
#include <system_error>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"

namespace sluice {
namespace {

absl::Status TooFewThreads(absl::string_view what) {
  return ResourceExhausted(
      what,
      "; allow it more: `ulimit -u`, the control group's pids.max, and `ulimit "
      "-v` for their stacks");
}

absl::Status CheckThreads(int wanted) {
  Mutex mu;
  CondVar changed;
  bool go = false;
  std::vector<Thread> threads;
  // Lets the threads end on every path, so that they can be joined.
  const absl::Cleanup end = [&] {
    MutexLock lock(&mu);
    go = true;
    changed.NotifyAll();
  };
  absl::Status status;
  try {
    for (int i = 0; i < wanted; ++i) {
      threads.emplace_back("start-check", [&] {
        MutexLock lock(&mu);
        while (!go) changed.Wait(&mu);
      });
    }
  } catch (const std::system_error& e) {
    status = TooFewThreads(absl::StrCat("the system gives this process only ",
                                        threads.size(), " of the ", wanted,
                                        " threads that it needs"));
  }
  return status;
}

}  // namespace

absl::Status CheckStart(int threads, size_t address_bytes) {
  void* const room = mmap(nullptr, address_bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    return ResourceExhausted(
        "the system does not give this process the ", address_bytes >> 20,
        " MiB of addresses that it needs; raise `ulimit -v`");
  }
  const absl::Status status = CheckThreads(threads);
  munmap(room, address_bytes);
  return status;
}

absl::Status RunGuarded(const std::function<absl::Status()>& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "the system gives this process no more memory; raise `ulimit -v`, or "
        "the control group's limit");
  } catch (const std::system_error& e) {
    if (e.code() != std::errc::resource_unavailable_try_again) throw;
    return TooFewThreads("the system gives this process no more threads");
  }
}

void RaiseFileLimit() {
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace sluice
