#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/types.h"

// What both ends of a link agree on beside the frames.
//
// The sender opens LinkService.Send with its epoch in the metadata. The
// receiver answers with a Credit of 0 frames once it has taken the stream, and
// with more whenever it has room. Each frame costs one credit. A half-close by
// the sender means that it is done with the epoch; any other end is an error.
//
// With kPayloadsMetadata the payloads travel beside the stream (see
// payload_channel.h), and frames only announce them:
//
//   sender                       coordinator             receiver
//   opens the stream  ------------------------------->   takes it
//   makes an id, opens its end
//   LinkId(epoch, id) ---------> LinkId(epoch, id) --->   opens its end, begins
//   begins to connect <-------------------------------   Credit(joined)
//   frame, payload    ------------------------------->   Credit(1)
//
// The id takes the way of the assignments, since it belongs to the plan; the
// receiver's Credit repeats its checksum, so that two ends which were told
// different ids (of plans of two coordinators) find out instead of waiting for
// each other. The id is made when both ends are alive, and both begin at once:
// NCCL keeps a socket and a thread for an id until both have joined.
//
// No deadlock: the header goes out before its payload is begun, and does not
// wait for it. The receiver begins to receive as soon as it has read the
// header, whether or not anybody consumes: the credit was its word that there
// is room. So whoever has begun a transfer has a peer that has begun or will
// begin the same one next, for each channel has one direction and one order. On
// GPUs that would run one transfer at a time, stage i may wait for a
// neighbour's transfer, the first one only for the next stage, the last one
// only for the one before; so two neighbours wait for each other, which is the
// transfer that they share, and goes on.

namespace sluice {

inline constexpr char kLinkMethod[] = "/sluice.v1.LinkService/Send";
inline constexpr char kEpochMetadata[] = "sluice-epoch";  // decimal
// A LinkTransport's name; absent for gRPC.
inline constexpr char kPayloadsMetadata[] = "sluice-payloads";

// A stream of this epoch belongs to no plan (those count from 1): it measures
// the link, and what it carries is dropped where it arrives. Frames have up to
// kProbeRows rows of kProbeCols columns. While they have one row, each waits
// for the one before, so that the sender sees round trips; from the first that
// has more, kProbeFrames are under way together.
inline constexpr PlanEpoch kProbeEpoch(0);
inline constexpr int64_t kProbeRows = 1024;
inline constexpr int64_t kProbeCols = 1024;  // 4 MiB of activations
inline constexpr int32_t kProbeFrames = 4;

struct Credit {
  uint32_t frames = 0;
  // LinkIdChecksum of the id that the receiver joins, said once.
  std::optional<uint64_t> joined;
};

// Tells ids apart without telling them: who has one may join.
uint64_t LinkIdChecksum(const std::string& id);

grpc::ByteBuffer EncodeCredit(const Credit& credit);
// kInvalidArgument: not a Credit message.
absl::StatusOr<Credit> DecodeCredit(const grpc::ByteBuffer& bytes);

}  // namespace sluice
