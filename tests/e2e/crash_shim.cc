// This library is preloaded into a program, which it kills, as kill -9 does,
// before its CRASH_AT-th change of a name whose path contains CRASH_UNDER: a
// removal or a renaming. Each is told in a line of the file CRASH_LOG.

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

void Step(const char* what, const char* path) {
  static std::atomic<int> steps{0};
  const char* under = std::getenv("CRASH_UNDER");
  if (under == nullptr || std::strstr(path, under) == nullptr) return;
  if (const char* log = std::getenv("CRASH_LOG")) {
    const int fd = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    dprintf(fd, "%s %s\n", what, path);
    close(fd);
  }
  const char* at = std::getenv("CRASH_AT");
  if (at != nullptr && ++steps == std::atoi(at)) kill(getpid(), SIGKILL);
}

}  // namespace

extern "C" {

int unlink(const char* path) noexcept {
  static const auto real = Next<int (*)(const char*)>("unlink");
  Step("unlink", path);
  return real(path);
}

int unlinkat(int fd, const char* path, int flags) noexcept {
  static const auto real = Next<int (*)(int, const char*, int)>("unlinkat");
  // Relative to a directory, as remove_all() does it: its own name is not
  // known.
  Step("unlinkat", path);
  return real(fd, path, flags);
}

int remove(const char* path) noexcept {
  static const auto real = Next<int (*)(const char*)>("remove");
  Step("remove", path);
  return real(path);
}

int rmdir(const char* path) noexcept {
  static const auto real = Next<int (*)(const char*)>("rmdir");
  Step("rmdir", path);
  return real(path);
}

int rename(const char* from, const char* to) noexcept {
  static const auto real = Next<int (*)(const char*, const char*)>("rename");
  Step("rename", to);
  return real(from, to);
}

}  // extern "C"
