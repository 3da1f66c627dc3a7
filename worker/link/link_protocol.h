#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/statusor.h"

// What both ends of a link agree on beside the frames.
//
// The sender opens LinkService.Send with its epoch in the metadata. The
// receiver answers with a Credit of 0 frames once it has taken the stream, and
// with more whenever it has room. Each frame costs one credit. A half-close by
// the sender means that it is done with the epoch; any other end is an error.

namespace sluice {

inline constexpr char kLinkMethod[] = "/sluice.v1.LinkService/Send";
inline constexpr char kEpochMetadata[] = "sluice-epoch";  // decimal

grpc::ByteBuffer EncodeCredit(uint32_t frames);
// kInvalidArgument: not a Credit message.
absl::StatusOr<uint32_t> DecodeCredit(const grpc::ByteBuffer& bytes);

}  // namespace sluice
