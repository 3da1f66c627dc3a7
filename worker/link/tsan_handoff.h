#pragma once

// The distribution's gRPC is built without ThreadSanitizer, which therefore
// does not see that a message's bytes pass from sender to receiver in order
// when both are in one process and share the memory. These say so.

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
