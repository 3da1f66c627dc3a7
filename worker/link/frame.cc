#include "worker/link/frame.h"

#include <grpcpp/support/slice.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "proto/convert.h"
#include "proto/tsan_handoff.h"
#include "proto/wire_limits.h"
#include "runtime/quant/convert_floats.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little,
              "frames carry little-endian floats in place");

constexpr int kActivationsField = v1::Frame::kActivationsFieldNumber;
enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr int64_t kPart = 1024;  // numbers that are converted at a time

// The bytes of a number on a link: kFloat32 or kBFloat16.
size_t NumberBytes(DType dtype) {
  return dtype == DType::kFloat32 ? sizeof(float) : sizeof(uint16_t);
}

void AppendVarint(uint64_t value, std::string* out) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

void ReleaseBuffer(void* holder) {
  TakeOver(holder);
  auto* hidden = static_cast<std::shared_ptr<ActivationBuffer>*>(holder);
  TakeOver((*hidden)->data());
  delete hidden;
}

absl::Status Malformed(const auto&... what) {
  return InvalidArgument("frame: ", what...);
}

// Reads forward over the slices of a message without joining them.
class SliceCursor {
 public:
  explicit SliceCursor(const std::vector<grpc::Slice>& slices)
      : slices_(slices) {
    for (const grpc::Slice& slice : slices_) remaining_ += slice.size();
    Settle();
  }

  size_t remaining() const { return remaining_; }

  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      uint8_t byte;
      if (!Read(&byte, 1)) return false;
      if (shift == 63 && byte > 1) return false;
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  // Reads `n` bytes to `out`, or skips them if `out` is null.
  bool Read(void* out, size_t n) {
    if (n > remaining_) return false;
    auto* to = static_cast<char*>(out);
    while (n > 0) {
      const grpc::Slice& slice = slices_[index_];
      const size_t part = std::min(n, slice.size() - offset_);
      if (to != nullptr) {
        std::memcpy(to, slice.begin() + offset_, part);
        to += part;
      }
      offset_ += part;
      remaining_ -= part;
      n -= part;
      Settle();
    }
    return true;
  }

 private:
  void Settle() {
    while (index_ < slices_.size() && offset_ == slices_[index_].size()) {
      ++index_;
      offset_ = 0;
    }
  }

  const std::vector<grpc::Slice>& slices_;
  size_t index_ = 0;
  size_t offset_ = 0;
  size_t remaining_ = 0;
};

struct Header {
  uint64_t epoch = 0;
  uint64_t block = 0;
  uint64_t step = 0;
  uint64_t micro_batch = 0;
  uint64_t rows = 0;
  uint64_t cols = 0;
  uint64_t detached_bytes = 0;
  bool has_plan = false;
  std::string plan;
  uint64_t payload_bytes = 0;

  uint64_t* Varint(uint64_t field) {
    switch (field) {
      case v1::Frame::kEpochFieldNumber:
        return &epoch;
      case v1::Frame::kBlockFieldNumber:
        return &block;
      case v1::Frame::kStepFieldNumber:
        return &step;
      case v1::Frame::kMicroBatchFieldNumber:
        return &micro_batch;
      case v1::Frame::kRowsFieldNumber:
        return &rows;
      case v1::Frame::kColsFieldNumber:
        return &cols;
      case v1::Frame::kDetachedBytesFieldNumber:
        return &detached_bytes;
      default:
        return nullptr;
    }
  }
};

absl::Status SkipField(SliceCursor* in, uint64_t field, int wire_type) {
  uint64_t value = 0;
  bool ok = false;
  switch (wire_type) {
    case kVarint:
      ok = in->ReadVarint(&value);
      break;
    case kFixed64:
      ok = in->Read(nullptr, 8);
      break;
    case kBytes:
      ok = in->ReadVarint(&value) && value <= in->remaining() &&
           in->Read(nullptr, value);
      break;
    case kFixed32:
      ok = in->Read(nullptr, 4);
      break;
    default:
      break;
  }
  if (ok) return absl::OkStatus();
  return Malformed("field ", field, " of wire type ", wire_type,
                   " is malformed");
}

// Reads a header and leaves `in` at the payload.
absl::StatusOr<Header> ReadHeader(SliceCursor* in) {
  Header header;
  while (in->remaining() > 0) {
    uint64_t tag;
    if (!in->ReadVarint(&tag) || tag > UINT32_MAX || tag >> 3 == 0) {
      return Malformed("bad tag");
    }
    const uint64_t field = tag >> 3;
    const int wire_type = static_cast<int>(tag & 7);
    if (uint64_t* value = header.Varint(field)) {
      if (wire_type != kVarint || !in->ReadVarint(value)) {
        return Malformed("field ", field, " is no varint");
      }
    } else if (field == v1::Frame::kPlanFieldNumber) {
      uint64_t size;
      if (wire_type != kBytes || header.has_plan || !in->ReadVarint(&size) ||
          size > in->remaining() || size > kMaxStepPlanBytes) {
        return Malformed("plan is malformed");
      }
      header.has_plan = true;
      header.plan.resize(size);
      in->Read(header.plan.data(), size);
    } else if (field == kActivationsField) {
      if (wire_type != kBytes || !in->ReadVarint(&header.payload_bytes)) {
        return Malformed("activations are malformed");
      }
      if (header.payload_bytes != in->remaining()) {
        return Malformed("activations of ", header.payload_bytes,
                         " bytes, but ", in->remaining(), " bytes follow");
      }
      break;
    } else {
      SLUICE_RETURN_IF_ERROR(SkipField(in, field, wire_type));
    }
  }
  return header;
}

size_t PayloadBytes(const ActivationFrame& frame, DType dtype) {
  if (frame.hidden == nullptr) return 0;
  return static_cast<size_t>(frame.hidden->rows() * frame.hidden->cols()) *
         NumberBytes(dtype);
}

// Encodes all of a frame but the activations that it brings itself.
absl::StatusOr<std::string> EncodeFields(const ActivationFrame& frame,
                                         size_t payload, bool detached) {
  v1::Frame header;
  header.set_epoch(frame.epoch.value());
  header.set_block(frame.block.value());
  header.set_step(frame.step);
  header.set_micro_batch(frame.micro_batch);
  if (frame.plan != nullptr) ToProto(*frame.plan, header.mutable_plan());
  if (detached) header.set_detached_bytes(payload);
  if (frame.hidden != nullptr) {
    header.set_rows(static_cast<uint32_t>(frame.hidden->rows()));
    header.set_cols(static_cast<uint32_t>(frame.hidden->cols()));
  }
  const size_t header_bytes = header.ByteSizeLong();
  if (header_bytes > kMaxStepPlanBytes + kFrameFieldBytes ||
      payload > kMaxActivationBytes) {
    return InvalidArgument("frame of ", payload,
                           " bytes of activations and a plan of ", header_bytes,
                           " bytes is larger than a frame may be (",
                           kMaxActivationBytes, " and ", kMaxStepPlanBytes,
                           "); use a lower max_step_tokens");
  }
  std::string bytes;
  bytes.reserve(header_bytes + 16);
  header.AppendToString(&bytes);
  return bytes;
}

absl::StatusOr<std::shared_ptr<const StepPlan>> ReadPlan(
    const Header& header, const FrameLimits& limits) {
  v1::StepPlan proto;
  if (!proto.ParseFromString(header.plan)) {
    return Malformed("plan is no StepPlan");
  }
  SLUICE_ASSIGN_OR_RETURN(StepPlan plan, FromProto(proto));
  if (plan.epoch.value() != static_cast<int64_t>(header.epoch) ||
      plan.block.value() != static_cast<int64_t>(header.block) ||
      plan.step != static_cast<int64_t>(header.step)) {
    return Malformed("plan is of another epoch, block or step");
  }
  if (plan.micro_batches.size() >
      static_cast<size_t>(limits.max_micro_batches)) {
    return Malformed("plan has ", plan.micro_batches.size(),
                     " micro-batches, the policy allows ",
                     limits.max_micro_batches);
  }
  return std::make_shared<const StepPlan>(std::move(plan));
}

}  // namespace

std::span<const std::byte> NarrowPayload(DType dtype,
                                         ActivationBuffer* hidden) {
  auto* const bytes = reinterpret_cast<std::byte*>(hidden->data());
  if (dtype == DType::kFloat32) return {bytes, hidden->bytes()};
  uint16_t part[kPart];
  const int64_t size = hidden->rows() * hidden->cols();
  for (int64_t i = 0; i < size; i += kPart) {
    const auto n = static_cast<int32_t>(std::min<int64_t>(kPart, size - i));
    FloatToBf16(hidden->data() + i, n, part);
    std::memcpy(bytes + i * sizeof(uint16_t), part, n * sizeof(uint16_t));
  }
  return {bytes, hidden->bytes() / 2};
}

std::span<std::byte> PayloadOf(ActivationBuffer& hidden, DType dtype) {
  const size_t size = hidden.bytes();
  const size_t first = dtype == DType::kFloat32 ? 0 : size / 2;
  return {reinterpret_cast<std::byte*>(hidden.data()) + first, size - first};
}

void WidenPayload(DType dtype, ActivationBuffer* hidden) {
  if (dtype == DType::kFloat32) return;
  const std::byte* const from = PayloadOf(*hidden, dtype).data();
  uint16_t part[kPart];
  const int64_t size = hidden->rows() * hidden->cols();
  // Float i ends no later than number i + 1 of the payload begins.
  for (int64_t i = 0; i < size; i += kPart) {
    const int64_t n = std::min<int64_t>(kPart, size - i);
    std::memcpy(part, from + i * sizeof(uint16_t), n * sizeof(uint16_t));
    ToFloats(part, n, DType::kBFloat16, hidden->data() + i);
  }
}

absl::StatusOr<std::string> EncodeHeader(const ActivationFrame& frame,
                                         DType dtype) {
  return EncodeFields(frame, PayloadBytes(frame, dtype), true);
}

absl::StatusOr<grpc::ByteBuffer> EncodeFrame(const ActivationFrame& frame,
                                             DType dtype, bool detached) {
  const size_t payload = PayloadBytes(frame, dtype);
  SLUICE_ASSIGN_OR_RETURN(std::string bytes,
                          EncodeFields(frame, payload, detached));
  if (frame.hidden == nullptr || detached) {
    const grpc::Slice slice(bytes);
    return grpc::ByteBuffer(&slice, 1);
  }
  AppendVarint(kActivationsField << 3 | kBytes, &bytes);
  AppendVarint(payload, &bytes);
  if (payload == 0) {
    const grpc::Slice slice(bytes);
    return grpc::ByteBuffer(&slice, 1);
  }
  NarrowPayload(dtype, frame.hidden.get());
  auto* holder = new std::shared_ptr<ActivationBuffer>(frame.hidden);
  HandOff(holder);
  HandOff(frame.hidden->data());
  const grpc::Slice slices[2] = {
      grpc::Slice(bytes),
      grpc::Slice(frame.hidden->data(), payload, &ReleaseBuffer, holder)};
  return grpc::ByteBuffer(slices, 2);
}

absl::StatusOr<ActivationFrame> DecodeFrame(const grpc::ByteBuffer& bytes,
                                            const FrameLimits& limits,
                                            ActivationPool* pool) {
  std::vector<grpc::Slice> slices;
  if (!bytes.Valid() || bytes.Length() > kMaxFrameBytes ||
      !bytes.Dump(&slices).ok()) {
    return Malformed("unreadable message");
  }
  SliceCursor in(slices);
  SLUICE_ASSIGN_OR_RETURN(const Header header, ReadHeader(&in));
  if (header.block > INT32_MAX || header.micro_batch > INT32_MAX ||
      header.epoch > INT64_MAX || header.step > INT64_MAX) {
    return Malformed("negative epoch, block, step or micro_batch");
  }
  ActivationFrame frame;
  frame.epoch = PlanEpoch(static_cast<int64_t>(header.epoch));
  frame.block = BlockId(static_cast<int32_t>(header.block));
  frame.step = static_cast<int64_t>(header.step);
  frame.micro_batch = static_cast<int32_t>(header.micro_batch);
  if (frame.micro_batch != 0 && frame.micro_batch >= limits.max_micro_batches) {
    return Malformed("micro_batch ", frame.micro_batch, ", the policy allows ",
                     limits.max_micro_batches);
  }
  if (header.has_plan != (frame.micro_batch == 0)) {
    return Malformed("the plan rides on micro-batch 0, and only there");
  }
  if (header.has_plan) {
    SLUICE_ASSIGN_OR_RETURN(frame.plan, ReadPlan(header, limits));
    if (frame.plan->micro_batches.empty()) {
      if (header.rows != 0 || header.cols != 0 || header.payload_bytes != 0 ||
          header.detached_bytes != 0) {
        return Malformed("activations with a plan without micro-batches");
      }
      return frame;
    }
  }
  if (header.rows > static_cast<uint64_t>(limits.max_rows)) {
    return Malformed(header.rows, " rows, the policy allows ", limits.max_rows);
  }
  if (header.cols != static_cast<uint64_t>(limits.cols)) {
    return Malformed("hidden size ", header.cols, ", the model's is ",
                     limits.cols);
  }
  const uint64_t expected =
      limits.detached ? header.detached_bytes : header.payload_bytes;
  if (expected != header.rows * header.cols * NumberBytes(limits.dtype)) {
    return Malformed(limits.detached ? "detached " : "", "activations of ",
                     expected, " bytes for ", header.rows, " rows of ",
                     header.cols, " numbers of ", NumberBytes(limits.dtype),
                     " bytes");
  }
  if (header.payload_bytes + header.detached_bytes != expected) {
    return Malformed(limits.detached
                         ? "activations on a stream of detached ones"
                         : "detached activations on a stream with its own");
  }
  for (const grpc::Slice& slice : slices) TakeOver(slice.begin());
  frame.hidden = pool->Acquire(static_cast<int64_t>(header.rows),
                               static_cast<int64_t>(header.cols));
  if (header.payload_bytes > 0) {
    in.Read(PayloadOf(*frame.hidden, limits.dtype).data(),
            header.payload_bytes);
    WidenPayload(limits.dtype, frame.hidden.get());
  }
  for (const grpc::Slice& slice : slices) HandOff(slice.begin());
  return frame;
}

}  // namespace sluice
