#include "tests/cuda/emulation/fiber.h"

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define SLUICE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLUICE_ASAN 1
#endif
#endif

#ifdef SLUICE_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define SLUICE_UNGUARDED __attribute__((no_sanitize_address))
#else
#define SLUICE_UNGUARDED
#endif

#ifndef SLUICE_FIBERS_BY_UCONTEXT
// Keeps what the System V ABI lets a callee change for its caller, leaves the
// stack pointer in *save, and goes on where `to` was left. Some ten times
// faster than swapcontext, which asks the kernel for the signal mask.
extern "C" void sluice_switch_stack(void** save, void* to);
asm(R"(
.text
.p2align 4
.globl sluice_switch_stack
.hidden sluice_switch_stack
.type sluice_switch_stack, @function
sluice_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sluice_switch_stack, . - sluice_switch_stack
)");
#endif

namespace sluice::emulation {
namespace {

// The fiber that the thread enters or runs.
thread_local Fiber* running = nullptr;

}  // namespace

void Fiber::Start(Body body, void* arg) {
#ifdef SLUICE_ASAN
  // Frames that were abandoned left their guards behind.
  if (!ended_) __asan_unpoison_memory_region(stack_.data(), stack_.size());
  fake_stack_ = nullptr;
#endif
  body_ = body;
  arg_ = arg;
  ended_ = false;
#ifdef SLUICE_FIBERS_BY_UCONTEXT
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_.data();
  inside_.uc_stack.ss_size = stack_.size();
  inside_.uc_link = nullptr;
  makecontext(&inside_, &Fiber::Enter, 0);
#else
  const uintptr_t end =
      reinterpret_cast<uintptr_t>(stack_.data() + stack_.size()) / 16 * 16;
  // Six registers, where to go, and a null for whoever walks the stack; at
  // Enter the stack pointer is where a call would have left it.
  auto* top = reinterpret_cast<uintptr_t*>(end) - 8;
  for (int i = 0; i < 8; ++i) top[i] = 0;
  top[6] = reinterpret_cast<uintptr_t>(&Fiber::Enter);
  inside_ = top;
#endif
}

SLUICE_UNGUARDED void Fiber::SwitchIn() {
#ifdef SLUICE_FIBERS_BY_UCONTEXT
  swapcontext(&outside_, &inside_);
#else
  sluice_switch_stack(&outside_, inside_);
#endif
}

SLUICE_UNGUARDED void Fiber::SwitchOut() {
#ifdef SLUICE_FIBERS_BY_UCONTEXT
  swapcontext(&inside_, &outside_);
#else
  sluice_switch_stack(&inside_, outside_);
#endif
}

SLUICE_UNGUARDED void Fiber::Enter() {
  Fiber* self = running;
#ifdef SLUICE_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &self->outer_stack_,
                                  &self->outer_bytes_);
#endif
  self->body_(self->arg_);
  self->ended_ = true;
#ifdef SLUICE_ASAN
  __sanitizer_start_switch_fiber(nullptr, self->outer_stack_,
                                 self->outer_bytes_);
#endif
  self->SwitchOut();
  __builtin_unreachable();
}

SLUICE_UNGUARDED void Fiber::Resume() {
  running = this;
#ifdef SLUICE_ASAN
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_.data(), stack_.size());
#endif
  SwitchIn();
#ifdef SLUICE_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

SLUICE_UNGUARDED void Fiber::Suspend() {
#ifdef SLUICE_ASAN
  __sanitizer_start_switch_fiber(&fake_stack_, outer_stack_, outer_bytes_);
#endif
  SwitchOut();
#ifdef SLUICE_ASAN
  __sanitizer_finish_switch_fiber(fake_stack_, &outer_stack_, &outer_bytes_);
#endif
}

}  // namespace sluice::emulation
