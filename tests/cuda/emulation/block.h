#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/cuda/emulation/vector_types.h"

// A grid on one processor. Blocks run one after the other; the threads of a
// block are fibers, which run one at a time until they wait for each other: at
// a barrier or where the lanes of a warp exchange something. So nothing depends
// on chance, and what is missing is seen:
//
//   - a barrier that some thread of the block never reaches;
//   - a warp operation with lanes missing, or other lanes' operation;
//   - what lies beyond shared or device memory (AddressSanitizer), and what was
//     never written there: such memory begins as NaN, byte 0xff;
//   - a missing barrier: let the threads run in another Order, and results
//     differ.

namespace sluice::emulation {

// The order in which the threads of a block get their turns.
enum class Order { kForward, kBackward, kShuffled };
// Sets the order of the launches that follow, of any thread.
void SetOrder(Order order);

struct Grid {
  dim3 grid;
  dim3 block;
  size_t dynamic_shared_bytes = 0;
};

// Runs body(arg) once for each thread of each block. Returns what went wrong,
// where the kernel was abandoned; empty if nothing did. One grid runs at a
// time.
std::string RunGrid(const Grid& grid, void (*body)(const void* arg),
                    const void* arg);

// The rest is for the thread that is running.

// Abandons the kernel. Nothing on the thread's stack is destroyed: callers keep
// nothing there that owns memory.
[[noreturn]] void Fault(std::string what);

// Waits until all threads of the block are at a barrier. Returns in how many of
// them `predicate` is true.
int Barrier(const char* name, bool predicate);

// Waits until all lanes in `mask`, of which the thread is one, are here; they
// must have come with the same arguments but for `request`. The last to come
// calls complete(requests), where requests[lane] is that lane's, null for lanes
// that take no part.
using Requests = void* const[32];
void WarpMeet(const char* name, unsigned mask, void* request,
              void (*complete)(const Requests& requests));

// Returns the dynamic shared memory of the running block, at a multiple of 128
// bytes.
void* DynamicShared();

}  // namespace sluice::emulation

// CUDA's variables, of the running thread.
inline uint3 threadIdx;
inline uint3 blockIdx;
inline dim3 blockDim;
inline dim3 gridDim;
inline constexpr int warpSize = 32;
