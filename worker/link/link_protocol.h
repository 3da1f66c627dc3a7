#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/types.h"

// The protocol of both ends of a link, beside the frames.
//
// The sender opens LinkService.Send with its epoch in the metadata. The
// receiver answers with a Credit of 0 frames once it has taken the stream, and
// with more whenever it has room. Each frame costs one credit. A half-close by
// the sender means that it is done with the epoch; any other end is an error.
//
// With kTransportMetadata "tcp" the frames travel by a TCP connection to the
// port of the stream (tcp/shared_port.h): 4 bytes, little-endian, the size of a
// frame's header, the header (frame.h), its detached payload, and so on. The
// connection is made once the receiver has answered Credit(joined), and begins
// with the id that came in the stream's metadata. It carries nothing else: the
// stream says which end is done, or gone, and why. A frame so costs its bytes'
// way through two kernels, and a share of a credit.
//
// With kTransportMetadata "nccl" the payloads travel beside the stream (see
// payload_channel.h), and frames only announce them:
//
//   sender                       coordinator             receiver
//   opens the stream  ------------------------------->   takes it
//   makes an id, opens its end
//   LinkId(epoch, id) ---------> LinkId(epoch, id) --->   opens its end, begins
//   begins to connect <-------------------------------   Credit(joined)
//   frame, payload    ------------------------------->   Credit(1)
//
// The id travels with the assignments, since it belongs to the plan; the
// receiver's Credit repeats its checksum, so that two ends which were told
// different ids (of plans of two coordinators) find out instead of waiting for
// each other. The id is made when both ends are alive, and both begin at once:
// NCCL keeps a socket and a thread for an id until both have joined.
//
// No deadlock: the header goes out before its payload is begun, and does not
// wait for it. The receiver begins to receive as soon as it has read the
// header, whether or not anything consumes: the credit was its promise that
// there is room. So an end that has begun a transfer has a peer that has begun
// or will begin the same one next, as each channel has one direction and one
// order. On GPUs that would run one transfer at a time, stage i may wait for a
// neighbour's transfer, the first one only for the next stage, the last one
// only for the one before; so some two neighbours wait for each other, in the
// transfer that they share, which goes on.

namespace sluice {

inline constexpr char kLinkMethod[] = "/sluice.v1.LinkService/Send";
inline constexpr char kEpochMetadata[] = "sluice-epoch";  // decimal
// The value is a LinkTransport's name; absent for gRPC.
inline constexpr char kTransportMetadata[] = "sluice-payloads";
// The id of the TCP connection, in hexadecimal digits.
inline constexpr char kTcpIdMetadata[] = "sluice-tcp-id";
inline constexpr size_t kTcpSizeBytes = 4;  // before each frame's header

// A stream of this epoch belongs to no plan (those count from 1): it measures
// the link, and the receiver drops its frames. Frames have up to kProbeRows
// rows of kProbeCols columns. While they have one row, each waits for the one
// before, so that the sender sees round trips; from the first that has more,
// kProbeFrames are under way together.
inline constexpr PlanEpoch kProbeEpoch(0);
inline constexpr int64_t kProbeRows = 1024;
inline constexpr int64_t kProbeCols = 1024;  // 4 MiB of activations
inline constexpr int32_t kProbeFrames = 4;

struct Credit {
  uint32_t frames = 0;
  // LinkIdChecksum of the id that the receiver joins; sent once.
  std::optional<uint64_t> joined;
};

// Identifies an id without revealing it: whoever has the id may join.
uint64_t LinkIdChecksum(const std::string& id);

grpc::ByteBuffer EncodeCredit(const Credit& credit);
// Decodes a Credit message; kInvalidArgument if it is none.
absl::StatusOr<Credit> DecodeCredit(const grpc::ByteBuffer& bytes);

}  // namespace sluice
