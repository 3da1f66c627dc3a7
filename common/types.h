#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/number_format.h"

namespace sluice {

// An integer that does not mix with other integers: StrongInt<JobIdTag> and
// StrongInt<StageIdTag> do not compare. Hashable by absl, printable by
// absl::StrCat through value().
template <typename Tag, typename Rep = int64_t>
class StrongInt {
 public:
  constexpr StrongInt() = default;
  constexpr explicit StrongInt(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(StrongInt, StrongInt) = default;
  template <typename H>
  friend H AbslHashValue(H h, StrongInt v) {
    return H::combine(std::move(h), v.value_);
  }

 private:
  Rep value_ = 0;
};

// Row id of a job in the store.
using JobId = StrongInt<struct JobIdTag>;
// One request being generated. Unique within a coordinator's life; never
// reused.
using SequenceId = StrongInt<struct SequenceIdTag>;
// Index of a block of sequences in flight, 0-based.
using BlockId = StrongInt<struct BlockIdTag, int32_t>;
// Position of a worker in the pipeline, 0-based.
using StageId = StrongInt<struct StageIdTag, int32_t>;
// Grows by one with each plan. Frames and results of an older epoch are
// refused.
using PlanEpoch = StrongInt<struct PlanEpochTag>;

// Decoder layers [begin, end).
struct LayerRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

// Returns "float32", "bfloat16" or "float16".
absl::string_view DTypeName(DType dtype);

// The dtype that the user asked for; kAuto follows the model's own (see
// ResolveDType in runtime/model/decoder_spec.h).
enum class DTypeChoice { kAuto, kFloat32, kBFloat16, kFloat16 };

// Parses "auto", "float32", "bfloat16" or "float16" (also "fp32", "float",
// "bf16", "fp16", "half"); kInvalidArgument otherwise.
absl::StatusOr<DTypeChoice> ParseDTypeChoice(absl::string_view text);

// Returns "none", "int8" or "int4".
absl::string_view WeightFormatName(WeightFormat format);
// The inverse of WeightFormatName; kInvalidArgument for anything else.
absl::StatusOr<WeightFormat> ParseWeightFormat(absl::string_view text);

// Returns "float32", "bfloat16", "float16", "int8" or "int4".
absl::string_view KvFormatName(KvFormat format);
// The inverse of KvFormatName; also takes ParseDTypeChoice's short names.
// kInvalidArgument otherwise.
absl::StatusOr<KvFormat> ParseKvFormat(absl::string_view text);

// The format that keeps K and V as they are computed.
inline KvFormat UnquantizedKvFormat(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return KvFormat::kBFloat16;
    case DType::kFloat16:
      return KvFormat::kFloat16;
    case DType::kFloat32:
      break;
  }
  return KvFormat::kFloat32;
}

}  // namespace sluice
