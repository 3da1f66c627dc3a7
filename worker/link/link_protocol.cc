#include "worker/link/link_protocol.h"

#include <grpcpp/support/slice.h>

#include <string>

#include "sluice/v1/pipeline.pb.h"
#include "worker/link/tsan_handoff.h"

namespace sluice {

grpc::ByteBuffer EncodeCredit(uint32_t frames) {
  v1::Credit credit;
  credit.set_frames(frames);
  const grpc::Slice slice(credit.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

absl::StatusOr<uint32_t> DecodeCredit(const grpc::ByteBuffer& bytes) {
  constexpr size_t kMaxBytes = 1024;
  v1::Credit credit;
  grpc::Slice slice;
  if (!bytes.Valid() || bytes.Length() > kMaxBytes ||
      !bytes.DumpToSingleSlice(&slice).ok() ||
      !credit.ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) {
    return absl::InvalidArgumentError("link: malformed credit");
  }
  return credit.frames();
}

}  // namespace sluice
