#pragma once

#include <cstddef>
#include <span>

#if !defined(__x86_64__) || defined(SLUICE_UCONTEXT_FIBERS)
#include <ucontext.h>
#define SLUICE_FIBERS_BY_UCONTEXT 1
#endif

namespace sluice::emulation {

// A flow of control with a stack of its own. It runs while someone is in
// Resume(). Known to AddressSanitizer.
class Fiber {
 public:
  using Body = void (*)(void* arg);

  // `stack` must live as long as the fiber may run.
  explicit Fiber(std::span<std::byte> stack) : stack_(stack) {}
  Fiber(Fiber&&) = default;

  // Makes it run body(arg) from the next Resume() on. What it was doing before
  // is forgotten, and no destructor runs.
  void Start(Body body, void* arg);
  // Returns when the fiber suspends itself or its body has returned. It must
  // not be called from within a fiber, nor once the body has returned.
  void Resume();
  // Returns when the fiber is resumed. It is called from within the fiber.
  void Suspend();
  // Whether the body has returned.
  bool ended() const { return ended_; }

 private:
  static void Enter();
  void SwitchIn();
  void SwitchOut();

  std::span<std::byte> stack_;
  Body body_ = nullptr;
  void* arg_ = nullptr;
  bool ended_ = true;
#ifdef SLUICE_FIBERS_BY_UCONTEXT
  ucontext_t inside_;
  ucontext_t outside_;
#else
  void* inside_ = nullptr;  // stack pointers
  void* outside_ = nullptr;
#endif
  // AddressSanitizer's: the stack that resumed this one, and what it keeps for
  // this one while it does not run.
  const void* outer_stack_ = nullptr;
  size_t outer_bytes_ = 0;
  void* fake_stack_ = nullptr;
};

}  // namespace sluice::emulation
