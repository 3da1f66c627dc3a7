#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "runtime/model/code_format.h"
#include "runtime/model/decoder_spec.h"
#include "tests/parity/random_source.h"

namespace sluice {

// Weights of which some are coded, as the spec says: pseudo-random codes, and
// scales that make them about as large as trained weights; as numbers, what
// these stand for. All others are RandomSource's.
class CodedSource : public RandomSource {
 public:
  CodedSource(const DecoderSpec& spec, uint64_t seed);
  absl::Status ReadRows(const TensorRef& ref, int64_t row_begin,
                        int64_t row_end, float* out) const override;
  absl::Status ReadCodes(const TensorRef& ref, const CodeFormat& format,
                         int64_t row_begin, int64_t row_end,
                         std::byte* out) const override;

 private:
  std::map<std::string, const CodeFormat*> formats_;  // by tensor
};

}  // namespace sluice
