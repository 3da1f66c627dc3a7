#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/types.h"
#include "runtime/model/checkpoint/quantization/quantization_config.h"
#include "runtime/model/checkpoint/safetensors_header.h"
#include "runtime/model/code_format.h"

// The seam between a checkpoint's files and what quantized weights are made of:
// each method (fp8.cc, gptq.cc, awq.cc, mxfp4_weight.cc, compressed_tensors.cc)
// says which tensors belong to a weight and what its rows are.

namespace sluice {

// The tensors of a checkpoint, by name. Thread-safe.
class StoredTensors {
 public:
  virtual ~StoredTensors() = default;
  struct Place {
    std::string path;                         // of the file
    const SafetensorsEntry* entry = nullptr;  // lives as long as the source
  };
  // Returns nothing if there is none of this name.
  virtual std::optional<Place> Find(const std::string& name) const = 0;
  // Reads bytes [begin, end) of a tensor, counted from its first. kDataLoss
  // names the file. REQUIRES: it exists and has them.
  virtual absl::Status Read(const std::string& name, uint64_t begin,
                            uint64_t end, char* out) const = 0;
};

// A matrix [rows, columns] that is stored as codes, scales and what else they
// need. Thread-safe once it is loaded.
class QuantizedWeight {
 public:
  virtual ~QuantizedWeight() = default;
  // The tensors of which it is made, all of which the checkpoint has.
  const std::vector<std::string>& parts() const { return parts_; }
  // The one, of I32 [columns], that has each column's group; "": there is none.
  const std::string& order_name() const { return order_name_; }
  // Returns the format in which rows can stay as they are coded; null: they
  // can't. Reads the order of columns, if the checkpoint has one, and nothing
  // else. The errors of Load().
  virtual absl::StatusOr<const CodeFormat*> FindFormat(
      const StoredTensors& tensors) const = 0;
  // Reads what all rows need: scales, zero points, orders, and codes that rows
  // can't be read from alone. kInvalidArgument names a tensor whose values are
  // out of range.
  virtual absl::Status Load(const StoredTensors& tensors) = 0;
  // Writes rows [begin, end) to `out` as float32, row-major: each weight has
  // the bits of the method's reference. REQUIRES: Load() was OK, and the weight
  // has these rows.
  virtual absl::Status ReadRows(const StoredTensors& tensors, int64_t begin,
                                int64_t end, float* out) const = 0;
  // What FindFormat() returned. REQUIRES: Load() was OK.
  const CodeFormat* format() const { return format_; }
  // Writes the same rows as they are coded, in format(), which is not null.
  virtual absl::Status ReadCodes(const StoredTensors& tensors, int64_t begin,
                                 int64_t end, std::byte* out) const = 0;

 protected:
  std::vector<std::string> parts_;
  std::string order_name_;
  const CodeFormat* format_ = nullptr;  // set by Load()
};

// What a weight must be.
struct WeightPlace {
  std::string module;  // its tensor's name without ".weight"
  int64_t rows = 0;    // outputs
  int64_t columns = 0;
  // Of one that is number `in_stack` of a stack (TensorSlice); 0: it is none.
  int64_t stack = 0;
  int64_t in_stack = 0;
};

// Opens a weight and checks the presence, dtypes and shapes of its tensors,
// without reading them. Null if the checkpoint does not have it quantized.
// kInvalidArgument names the file and the tensor that is missing or of the
// wrong dtype or shape.
absl::StatusOr<std::unique_ptr<QuantizedWeight>> OpenQuantizedWeight(
    const QuantizationConfig& config, const StoredTensors& tensors,
    const WeightPlace& place);

// Whether weights of the method, in a family's checkpoints of numbers as
// [inputs, outputs], are found by the method.
bool FindsTransposed(QuantizationConfig::Method method);
// Whether weights of the method are stored as [inputs, outputs], whatever the
// family has.
bool StoredByInputs(QuantizationConfig::Method method);

// Those of one method, as OpenQuantizedWeight.
absl::StatusOr<std::unique_ptr<QuantizedWeight>> OpenFp8Weight(
    const QuantizationConfig& config, const StoredTensors& tensors,
    const WeightPlace& place);
absl::StatusOr<std::unique_ptr<QuantizedWeight>> OpenGptqWeight(
    const QuantizationConfig& config, const StoredTensors& tensors,
    const WeightPlace& place);
absl::StatusOr<std::unique_ptr<QuantizedWeight>> OpenAwqWeight(
    const QuantizationConfig& config, const StoredTensors& tensors,
    const WeightPlace& place);
absl::StatusOr<std::unique_ptr<QuantizedWeight>> OpenMxFp4Weight(
    const StoredTensors& tensors, const WeightPlace& place);
absl::StatusOr<std::unique_ptr<QuantizedWeight>> OpenCompressedWeight(
    const QuantizationConfig& config, const StoredTensors& tensors,
    const WeightPlace& place);

// Checks that the checkpoint has a tensor of one of these dtypes and of one of
// these shapes. kInvalidArgument names `place`'s weight, which needs it.
absl::StatusOr<const SafetensorsEntry*> CheckPart(
    const StoredTensors& tensors, const WeightPlace& place,
    const std::string& name, const std::vector<absl::string_view>& dtypes,
    const std::vector<std::vector<int64_t>>& shapes);

// Reads all numbers of a tensor of F32, F16, BF16 or F8_E8M0 as float32.
absl::StatusOr<std::vector<float>> ReadNumbers(const StoredTensors& tensors,
                                               const std::string& name);
// Reads all of a tensor of integers of T's size.
template <typename T>
absl::StatusOr<std::vector<T>> ReadIntegers(const StoredTensors& tensors,
                                            const std::string& name) {
  const SafetensorsEntry& entry = *tensors.Find(name)->entry;
  std::vector<T> values((entry.end - entry.begin) / sizeof(T));
  absl::Status status = tensors.Read(name, 0, values.size() * sizeof(T),
                                     reinterpret_cast<char*>(values.data()));
  if (!status.ok()) return status;
  return values;
}

// Writes scales in a type that has them exactly; returns the end.
std::byte* WriteScales(std::span<const float> scales, DType dtype,
                       std::byte* out);

// Returns the type that a scale's dtype rounds products to: kFloat32 of any
// other than F16 and BF16.
DType RoundingOf(absl::string_view scale_dtype);
// Rounds to the nearest number of the type, ties to even.
float RoundTo(DType dtype, float x);

}  // namespace sluice
