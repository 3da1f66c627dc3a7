#include "scheduler/cost/product_rates.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>

#include "runtime/model/layer_weights.h"
#include "scheduler/cost/model_sizes.h"

namespace sluice {
namespace {

// Inputs of a row by which a format's bytes are told: whole blocks of any.
constexpr int64_t kSomeInputs = 4096;

// Returns the rate of the wanted formats, or of the nearest. Profiles have
// float16 only where there is no bfloat16, which, as wide, takes as long.
const ProductRate* NearestProducts(const ComputeProfile& compute, DType dtype,
                                   WeightFormat format) {
  if (const ProductRate* exact = compute.Products(dtype, format)) return exact;
  if (dtype == DType::kFloat16) {
    return NearestProducts(compute, DType::kBFloat16, format);
  }
  if (const ProductRate* full = compute.Products(dtype, WeightFormat::kFull)) {
    return full;
  }
  return compute.products.empty() ? nullptr : &compute.products.front();
}

// How unlike two formats are for what decodes them; 0: the same.
int Distance(const CodeFormat& a, const CodeFormat& b) {
  if (&a == &b) return 0;
  const int distance = 1 + std::abs(a.bits - b.bits);
  if ((a.scaled == nullptr) != (b.scaled == nullptr)) return distance + 16;
  const bool other_code =
      a.scaled != nullptr && a.scaled->code != b.scaled->code;
  return distance + (other_code ? 8 : 0);
}

// Formats differ more than dtypes: codes of GGUF become floats for any.
const CodeRate* NearestCodes(const ComputeProfile& compute, DType dtype,
                             const CodeFormat& codes) {
  const CodeRate* best = nullptr;
  int best_distance = 0;
  for (const CodeRate& rate : compute.codes) {
    const CodeFormat* const measured = FindCodeFormat(rate.format);
    if (measured == nullptr) continue;
    const int distance =
        2 * Distance(*measured, codes) + (rate.dtype == dtype ? 0 : 1);
    if (best != nullptr && distance >= best_distance) continue;
    best = &rate;
    best_distance = distance;
  }
  return best;
}

// Returns the rates of those matrices of the layers.
std::vector<SharedRates> RatesOf(
    const DecoderSpec& model, LayerRange layers,
    std::vector<LayerWeights::Matrix> LayerWeights::*matrices,
    const ComputeProfile& compute, DType dtype) {
  std::map<const CodeFormat*, double> elements;  // null: numbers
  double all = 0;
  for (int i = layers.begin; i < layers.end; ++i) {
    const LayerSpec layer = model.layer(i);
    const LayerWeights weights = WeightsOf(model, layer);
    for (const LayerWeights::Matrix& matrix : weights.*matrices) {
      for (const WeightSlot& slot : matrix.slots) {
        const auto some = static_cast<double>(slot.elements());
        elements[CodesOf(layer.codes, slot.role)] += some;
        all += some;
      }
    }
  }
  std::vector<SharedRates> rates;
  for (const auto& [codes, some] : elements) {
    rates.push_back(
        {some / all, ProductRates(compute, dtype, {.codes = codes})});
  }
  return rates;
}

}  // namespace

ProductRates::ProductRates(const ComputeProfile& compute, DType dtype,
                           WeightForm form)
    : bytes_per_second_(compute.memory_bytes_per_second) {
  const double full_bytes = WeightBytes(1, dtype, WeightFormat::kFull);
  if (!form.full()) {
    decode_per_second_ = compute.dequantize_bytes_per_second / full_bytes;
  }
  if (form.codes != nullptr) {
    bytes_ = static_cast<double>(form.codes->row_bytes(kSomeInputs)) /
             static_cast<double>(kSomeInputs);
    if (const CodeRate* rate = NearestCodes(compute, dtype, *form.codes)) {
      flops_by_rows_ = rate->flops_by_rows;
      decode_per_second_ = rate->decode_bytes_per_second / full_bytes;
      measured_ = true;
      return;
    }
  }
  if (const ProductRate* rate = NearestProducts(compute, dtype, form.format)) {
    flops_by_rows_ = rate->flops_by_rows;
    measured_ = form.codes == nullptr &&
                compute.Products(dtype, form.format) != nullptr;
    if (form.codes == nullptr) bytes_ = WeightBytes(1, dtype, rate->weights);
  }
}

double ProductRates::Multiply(double elements, double rows,
                              double passes) const {
  if (flops_by_rows_.empty()) return 0;
  const double flops = 2 * elements * rows * passes;
  const double computed = flops / flops_by_rows_.At(std::max(rows, 1e-3));
  const double read = bytes_per_second_ > 0
                          ? passes * elements * bytes_ / bytes_per_second_
                          : 0;
  return std::max(computed, read);
}

double ProductRates::Decode(double elements) const {
  return decode_per_second_ > 0 ? elements / decode_per_second_ : 0;
}

std::vector<SharedRates> CheckpointRates(const DecoderSpec& model,
                                         LayerRange layers,
                                         const ComputeProfile& compute,
                                         DType dtype) {
  return RatesOf(model, layers, &LayerWeights::matrices, compute, dtype);
}

std::vector<SharedRates> CheckpointExpertRates(const DecoderSpec& model,
                                               LayerRange layers,
                                               const ComputeProfile& compute,
                                               DType dtype) {
  return RatesOf(model, layers, &LayerWeights::expert_matrices, compute, dtype);
}

}  // namespace sluice
