#pragma once

#include <cstddef>
#include <cstdint>

// Limits of the values that cross process boundaries: receivers check them, and
// the sizes of messages are calculated from them (proto/wire_limits.h).

namespace sluice {

inline constexpr int32_t kMaxWorkers = 1024;

// Limits of one step.
inline constexpr int32_t kMaxGbs = 8192;             // sequences, micro-batch
inline constexpr int32_t kMaxMicroBatches = 64;      // of a block
inline constexpr int32_t kMaxStepTokens = 1 << 20;   // of a micro-batch
inline constexpr int64_t kMaxBlockTokens = 1 << 24;  // of all micro-batches
// Bytes of one micro-batch's float32 activations: tokens x hidden size x 4.
inline constexpr int64_t kMaxActivationBytes = int64_t{1} << 30;

// Limit of one request.
inline constexpr size_t kMaxLogitBiases = 1024;

// Limits of a worker's registration.
inline constexpr size_t kMaxWorkerNameBytes = 256;
inline constexpr size_t kMaxWorkerTextBytes = 4096;  // of every other string
inline constexpr size_t kMaxProfileBytes = size_t{256} << 10;
// Limits of the reason why a stage, or a link to another worker, failed.
inline constexpr size_t kMaxFailureBytes = 4096;
inline constexpr size_t kMaxLinkErrorBytes = 1024;

}  // namespace sluice
