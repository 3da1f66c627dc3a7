#pragma once

// The distribution's gRPC is built without ThreadSanitizer, which therefore
// does not see three things that it orders: the bytes of a message between a
// sender and a receiver that share them in one process, a reactor between the
// thread that starts an operation and the one that calls the reaction, and a
// reactor's end before its server's. HandOff on the one side and TakeOver on
// the other tell it.

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
namespace sluice {
inline void HandOff(const void* bytes) {
  __tsan_release(const_cast<void*>(bytes));
}
inline void TakeOver(const void* bytes) {
  __tsan_acquire(const_cast<void*>(bytes));
}
}  // namespace sluice
#else
namespace sluice {
inline void HandOff(const void*) {}
inline void TakeOver(const void*) {}
}  // namespace sluice
#endif

namespace sluice {

// The scope of a reaction: after the start of its operation, and before the
// reactor's OnDone.
class Reaction {
 public:
  explicit Reaction(const void* reactor) : reactor_(reactor) {
    TakeOver(reactor_);
  }
  ~Reaction() { HandOff(reactor_); }
  Reaction(const Reaction&) = delete;
  Reaction& operator=(const Reaction&) = delete;

 private:
  const void* const reactor_;
};

}  // namespace sluice
