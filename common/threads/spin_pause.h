#pragma once

namespace sluice {

// Tells the core that its thread spins: the core's other thread runs the
// better, and power is saved.
inline void SpinPause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace sluice
