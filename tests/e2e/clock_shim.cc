// This library is preloaded into a program, whose wall clock then goes wrong by
// as many seconds as the file that SLUICE_TEST_CLOCK names says, an int64 that
// may be written at any time. As with a clock that somebody sets, what already
// waits until a time of the wall clock waits longer or shorter with it; the
// monotonic clock, and all that waits by it, stay right.

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

constexpr int64_t kSecond = 1'000'000'000;
// The longest time in which a waiter notices that the clock was set.
constexpr int64_t kSlice = kSecond / 50;

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

const volatile int64_t* Shift() {
  static const volatile int64_t* const shift = [] {
    static const int64_t none = 0;
    const char* path = std::getenv("SLUICE_TEST_CLOCK");
    const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return &none;
    void* mapped = mmap(nullptr, sizeof(none), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return mapped == MAP_FAILED ? &none : static_cast<const int64_t*>(mapped);
  }();
  return shift;
}

int RealGettime(clockid_t id, timespec* out) {
  static const auto real = Next<int (*)(clockid_t, timespec*)>("clock_gettime");
  return real(id, out);
}

int64_t Nanos(const timespec& at) { return at.tv_sec * kSecond + at.tv_nsec; }

int64_t Now(clockid_t id) {
  timespec at;
  clock_gettime(id, &at);
  return Nanos(at);
}

// Calls wait(until), `until` of the monotonic clock, piece by piece until it
// says something else than `timed_out` or the wall clock shows `deadline`.
template <typename Wait, typename TimedOut>
auto WaitByWallClock(int64_t deadline, TimedOut timed_out, Wait wait) {
  for (;;) {
    const int64_t left = deadline - Now(CLOCK_REALTIME);
    const int64_t until =
        Now(CLOCK_MONOTONIC) + std::clamp<int64_t>(left, 0, kSlice);
    const timespec at = {.tv_sec = until / kSecond, .tv_nsec = until % kSecond};
    const auto result = wait(at);
    if (!timed_out(result) || left <= kSlice) return result;
  }
}

long RealSyscall(long number, long a, long b, long c, long d, long e, long f) {
  static const auto real = Next<long (*)(long, ...)>("syscall");
  return real(number, a, b, c, d, e, f);
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t id, timespec* out) noexcept {
  const int result = RealGettime(id, out);
  if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
    out->tv_sec += *Shift();
  }
  return result;
}

int gettimeofday(timeval* __restrict out, void* __restrict) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *out = {.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* out) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* __restrict cond,
                           pthread_mutex_t* __restrict mutex,
                           const timespec* __restrict deadline) {
  static const auto real =
      Next<int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t,
                   const timespec*)>("pthread_cond_clockwait");
  return WaitByWallClock(
      Nanos(*deadline), [](int result) { return result == ETIMEDOUT; },
      [&](const timespec& until) {
        return real(cond, mutex, CLOCK_MONOTONIC, &until);
      });
}

// Abseil's locks, which gRPC uses, wait by this.
long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long args[6];
  for (long& arg : args) arg = va_arg(list, long);
  va_end(list);
  const auto* deadline = reinterpret_cast<const timespec*>(args[3]);
  if (number != SYS_futex || (args[1] & FUTEX_CLOCK_REALTIME) == 0 ||
      deadline == nullptr) {
    return RealSyscall(number, args[0], args[1], args[2], args[3], args[4],
                       args[5]);
  }
  return WaitByWallClock(
      Nanos(*deadline),
      [](long result) { return result != 0 && errno == ETIMEDOUT; },
      [&](const timespec& until) {
        return RealSyscall(number, args[0], args[1] & ~FUTEX_CLOCK_REALTIME,
                           args[2], reinterpret_cast<long>(&until), args[4],
                           args[5]);
      });
}

}  // extern "C"
