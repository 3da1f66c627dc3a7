#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/number_format.h"
#include "runtime/memory/activation_buffer.h"
#include "worker/link/link.h"

// The wire form of a frame: a protobuf v1::Frame whose last field is
// `activations`, written and read by hand so that the payload is never copied
// by the sender and copied once by the receiver.
//
//   fields 1..7 (epoch, block, step, micro_batch, plan, rows, cols)
//   tag of field 15, varint length, little-endian payload, float32 or bfloat16
//
// On a stream with detached payloads, field 8 (detached_bytes) stands for field
// 15, and the payload comes by the channel beside it.
//
// Any protobuf implementation can read a frame. This one reads fields 1..8 in
// any order, skips unknown ones, and wants field 15 last.

namespace sluice {

// The limits of an epoch's frames, checked before anything is allocated.
struct FrameLimits {
  int64_t max_rows = 0;           // of one micro-batch
  int64_t cols = 0;               // hidden size
  int32_t max_micro_batches = 0;  // of one step
  bool detached = false;          // payloads come beside the frames
  DType dtype = DType::kFloat32;  // of payloads: or kBFloat16
};

// Makes a buffer's floats the payload of a frame: rounds them to nearest even
// in place, at the buffer's beginning, if `dtype` is kBFloat16. Returns the
// payload.
std::span<const std::byte> NarrowPayload(DType dtype, ActivationBuffer* hidden);

// Returns the part of a buffer into which its payload is received, the last
// one, and makes it the buffer's floats.
std::span<std::byte> PayloadOf(ActivationBuffer& hidden, DType dtype);
void WidenPayload(DType dtype, ActivationBuffer* hidden);

// The payload refers to frame.hidden's memory, is narrowed there, and keeps it
// alive; if `detached`, it is only announced. kInvalidArgument: too large a
// frame.
absl::StatusOr<grpc::ByteBuffer> EncodeFrame(const ActivationFrame& frame,
                                             DType dtype = DType::kFloat32,
                                             bool detached = false);

// A frame whose payload is only announced, as bytes.
absl::StatusOr<std::string> EncodeHeader(const ActivationFrame& frame,
                                         DType dtype);

// kInvalidArgument names the field that is malformed or out of `limits`. A
// detached payload's buffer has its size, but no contents yet.
absl::StatusOr<ActivationFrame> DecodeFrame(const grpc::ByteBuffer& bytes,
                                            const FrameLimits& limits,
                                            ActivationPool* pool);

}  // namespace sluice
