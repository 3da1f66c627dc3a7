#pragma once

#include <cstddef>
#include <cstdint>

// The most that is allowed of what crosses a process: checked where it comes
// in, and what the sizes of messages are calculated from (proto/wire_limits.h).

namespace sluice {

inline constexpr int32_t kMaxWorkers = 1024;

// Of one step.
inline constexpr int32_t kMaxGbs = 8192;             // sequences, micro-batch
inline constexpr int32_t kMaxMicroBatches = 64;      // of a block
inline constexpr int32_t kMaxStepTokens = 1 << 20;   // of a micro-batch
inline constexpr int64_t kMaxBlockTokens = 1 << 24;  // of all micro-batches
// Of one micro-batch, as float32: tokens x hidden size x 4.
inline constexpr int64_t kMaxActivationBytes = int64_t{1} << 30;

// Of one request.
inline constexpr size_t kMaxLogitBiases = 1024;

// What a worker says of itself when it registers.
inline constexpr size_t kMaxWorkerNameBytes = 256;
inline constexpr size_t kMaxWorkerTextBytes = 4096;  // of each other text
inline constexpr size_t kMaxProfileBytes = size_t{256} << 10;
// Why it can't do something: of a stage, of a link to one of the others.
inline constexpr size_t kMaxFailureBytes = 4096;
inline constexpr size_t kMaxLinkErrorBytes = 1024;

}  // namespace sluice
