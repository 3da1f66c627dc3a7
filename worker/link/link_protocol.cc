#include "worker/link/link_protocol.h"

#include <grpcpp/support/slice.h>

#include <span>
#include <string>

#include "runtime/memory/checksum.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {

uint64_t LinkIdChecksum(const std::string& id) {
  return BlockChecksum(std::as_bytes(std::span(id)));
}

grpc::ByteBuffer EncodeCredit(const Credit& credit) {
  v1::Credit message;
  message.set_frames(credit.frames);
  if (credit.joined.has_value()) message.set_joined(*credit.joined);
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

absl::StatusOr<Credit> DecodeCredit(const grpc::ByteBuffer& bytes) {
  constexpr size_t kMaxBytes = 1024;
  v1::Credit message;
  grpc::Slice slice;
  if (!bytes.Valid() || bytes.Length() > kMaxBytes ||
      !bytes.DumpToSingleSlice(&slice).ok() ||
      !message.ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) {
    return absl::InvalidArgumentError("link: malformed credit");
  }
  Credit credit;
  credit.frames = message.frames();
  if (message.has_joined()) credit.joined = message.joined();
  return credit;
}

}  // namespace sluice
