#pragma once

#include <vector>

#include "common/machine_profile.h"
#include "common/number_format.h"
#include "common/types.h"
#include "runtime/model/code_format.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// How weights lie in memory: in a format of ours, or, `format` being kFull, in
// a checkpoint's codes.
struct WeightForm {
  WeightFormat format = WeightFormat::kFull;
  const CodeFormat* codes = nullptr;
  bool full() const {
    return format == WeightFormat::kFull && codes == nullptr;
  }
};

// The time of products with weights that lie in one form, by what was measured
// of it on a processor, or of the nearest that was.
class ProductRates {
 public:
  // All takes no time, as by a profile without rates.
  ProductRates() = default;
  ProductRates(const ComputeProfile& compute, DType dtype, WeightForm form);

  // Whether products with weights in this form were measured, and not only with
  // full ones.
  bool measured() const { return measured_; }
  // Returns the seconds of GEMMs with `elements` weights, `passes` times over
  // `rows` rows: FlexGen A.3, comp, and no faster than the weights are read,
  // which is what bounds decoding of weights that stay.
  double Multiply(double elements, double rows, double passes) const;
  // Returns the seconds in which `elements` weights become full ones:
  // LM-Offload 3, eq. 16, with a measured rate.
  double Decode(double elements) const;

 private:
  RateCurve flops_by_rows_;
  bool measured_ = false;
  double bytes_ = 0;              // of an element
  double bytes_per_second_ = 0;   // of memory
  double decode_per_second_ = 0;  // elements; 0: they are full
};

// A share of some weights, and the rates of the form that they lie in.
struct SharedRates {
  double share = 0;
  ProductRates rates;
};

// Return the rates of the layers' matrices but those of experts, and of
// experts', as they lie in the checkpoint's codes; the shares add up to 1, but
// there are none of matrices that no layer has.
std::vector<SharedRates> CheckpointRates(const DecoderSpec& model,
                                         LayerRange layers,
                                         const ComputeProfile& compute,
                                         DType dtype);
std::vector<SharedRates> CheckpointExpertRates(const DecoderSpec& model,
                                               LayerRange layers,
                                               const ComputeProfile& compute,
                                               DType dtype);

}  // namespace sluice
