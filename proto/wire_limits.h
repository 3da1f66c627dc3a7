#pragma once

#include <cstdint>

#include "common/limits.h"

// The maximum sizes of the messages between processes, calculated from the
// limits of their contents. Bytes of protobuf fields are upper bounds: tags,
// varints of the type's full width, lengths.

namespace sluice {

// The maximum sizes of a StepPlan's parts, in bytes.
inline constexpr int64_t kSegmentBytes = 48;
inline constexpr int64_t kPlanTokenBytes = 5;
inline constexpr int64_t kReleaseBytes = 10;
inline constexpr int64_t kLogitBiasBytes = 9;
inline constexpr int64_t kAdmissionBytes = 132;  // without its logit_bias
inline constexpr int64_t kKeptPrefixBytes = 36;

// Biases, releases and kept prefixes beyond these numbers wait for the next
// plan.
inline constexpr int64_t kMaxPlanLogitBiases = 6 << 20;
inline constexpr int64_t kMaxPlanReleases = 1 << 20;
// Requests that came since may each add one.
inline constexpr int64_t kMaxPlanKeeps = 1 << 18;

// The maximum size of a StepPlan, which goes from stage to stage.
inline constexpr int64_t kMaxStepPlanBytes = int64_t{256} << 20;
static_assert(int64_t{kMaxGbs} * kMaxMicroBatches *
                      (kSegmentBytes + kAdmissionBytes) +
                  kMaxBlockTokens * kPlanTokenBytes +
                  kMaxPlanLogitBiases * kLogitBiasBytes +
                  kMaxPlanReleases * kReleaseBytes +
                  2 * kMaxPlanKeeps * kKeptPrefixBytes + kMaxMicroBatches * 16 <
              kMaxStepPlanBytes);
static_assert(kMaxPlanLogitBiases >= int64_t{kMaxLogitBiases});

// The maximum size of a Frame: a micro-batch's activations, with the step's
// plan in the first one.
inline constexpr int64_t kFrameFieldBytes = 128;
inline constexpr int64_t kMaxFrameBytes =
    kMaxActivationBytes + kMaxStepPlanBytes + kFrameFieldBytes;
static_assert(kMaxFrameBytes < INT32_MAX);  // protobuf's and gRPC's own limit

// The largest message that clients and workers may send to a coordinator. Input
// files and step results, which may be larger, come in parts.
inline constexpr int64_t kMaxRequestBytes = int64_t{4} << 20;
static_assert(kMaxWorkerNameBytes + kMaxProfileBytes +
                  10 * kMaxWorkerTextBytes <
              kMaxRequestBytes);
static_assert(kMaxWorkers * (kMaxWorkerNameBytes + kMaxLinkErrorBytes + 64) <
              kMaxRequestBytes);
// Numbers in one part of a step result, each of at most 10 bytes.
inline constexpr int64_t kMaxResultValues = 1 << 17;
static_assert(kMaxResultValues * 10 + 1024 < kMaxRequestBytes);

// Spans in a heartbeat.
inline constexpr int64_t kMaxHeartbeatSpans = 4096;
inline constexpr int64_t kSpanBytes = 136;
static_assert(kMaxHeartbeatSpans * kSpanBytes + 1024 < kMaxRequestBytes);

// The largest message from a coordinator to a worker: a step's plan.
inline constexpr int64_t kMaxInstructionBytes = kMaxStepPlanBytes + 1024;
static_assert(kMaxWorkers * (kMaxWorkerNameBytes + kMaxWorkerTextBytes + 64) <
              kMaxInstructionBytes);

// The largest answer of a coordinator to a client: a page of a list, which ends
// before the entry that would take it beyond kMaxPageBytes, unless that is its
// only one, and a plan, which has a few hundred bytes for each stage.
inline constexpr int64_t kMaxPageBytes = int64_t{4} << 20;
inline constexpr int64_t kMaxPlanJsonBytes = kMaxWorkers * (int64_t{16} << 10);
inline constexpr int64_t kMaxAnswerBytes =
    kMaxPageBytes + 2 * kMaxPlanJsonBytes;
static_assert(kMaxProfileBytes + kMaxWorkerNameBytes + 8 * kMaxWorkerTextBytes +
                  2 * kMaxFailureBytes <
              kMaxPageBytes);

// A status travels in a call's metadata, which is limited too. Messages beyond
// kMaxStatusBytes are cut; on the wire a byte may take three.
inline constexpr int64_t kMaxStatusBytes = 8 << 10;
inline constexpr int64_t kMaxMetadataBytes = 3 * kMaxStatusBytes + (8 << 10);

}  // namespace sluice
