#include "runtime/model/checkpoint/weight_remarks.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "runtime/model/checkpoint/tensor_names.h"

namespace sluice {
namespace {

std::vector<TensorRef> AllTensors(const DecoderSpec& spec) {
  std::vector<TensorRef> tensors = EmbeddingTensors(spec);
  const auto add = [&](std::vector<TensorRef> more) {
    tensors.insert(tensors.end(), more.begin(), more.end());
  };
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    add(LayerTensors(spec, layer));
  }
  add(HeadTensors(spec));
  return tensors;
}

std::string Biases(const std::string& first, size_t count) {
  if (count == 1) return absl::StrCat(first, " is");
  return absl::StrCat(first, " and ", count - 1,
                      count == 2 ? " other bias" : " other biases", " are");
}

}  // namespace

std::vector<std::string> WeightRemarks(const DecoderSpec& spec,
                                       const SafetensorsSource& source) {
  std::vector<std::string> remarks;
  size_t copies = 0;
  std::string copy;
  const auto ignored = ParseCopiesText(source.Copies());
  for (const auto& [file, tensors] : *ignored) {
    if (copies == 0) copy = absl::StrCat(*tensors.begin(), " in ", file);
    copies += tensors.size();
  }
  if (copies > 0) {
    remarks.push_back(absl::StrCat(
        copies == 1 ? "1 tensor is" : absl::StrCat(copies, " tensors are"),
        " in several of the model's files; what ", kShardIndexFile,
        " does not name is left out, as ", copy));
  }
  const std::map<std::string, size_t> beside = source.PartsBesideText();
  if (!beside.empty()) {
    size_t tensors = 0;
    for (const auto& [part, count] : beside) tensors += count;
    remarks.push_back(
        absl::StrCat("the model's text runs; its other parts are left out (",
                     absl::StrJoin(beside, ", ",
                                   [](std::string* out, const auto& part) {
                                     absl::StrAppend(out, part.first);
                                   }),
                     ": ", tensors, " tensors)"));
  }
  const QuantizationConfig& quantization = source.quantization();
  if (quantization.activations) {
    remarks.push_back(
        "the model's quantization rounds activations, too; here they are "
        "computed with as they are");
  }
  if (quantization.kv_cache || source.HasNameThatEnds(".k_scale") ||
      source.HasNameThatEnds(".v_scale")) {
    remarks.push_back(
        "the model's scales of a quantized KV cache are not used");
  }
  std::set<std::string> used;
  std::vector<std::string> missing;
  for (const TensorRef& tensor : AllTensors(spec)) {
    used.insert(tensor.name);
    if (IsBias(tensor.role) && !source.Has(tensor)) {
      missing.push_back(tensor.name);
    }
  }
  if (!missing.empty()) {
    remarks.push_back(absl::StrCat(Biases(missing[0], missing.size()),
                                   " not in the model's files and taken as 0"));
  }
  DecoderSpec all = spec;
  all.qkv_bias = all.out_bias = all.mlp_bias = all.head_bias = true;
  std::vector<std::string> unused;
  for (const TensorRef& tensor : AllTensors(all)) {
    if (IsBias(tensor.role) && !used.contains(tensor.name) &&
        source.Has(tensor)) {
      unused.push_back(tensor.name);
    }
  }
  if (!unused.empty()) {
    remarks.push_back(absl::StrCat(
        Biases(unused[0], unused.size()),
        " in the model's files and not used, as config.json's model has none"));
  }
  return remarks;
}

absl::Status CheckTensors(const DecoderSpec& spec,
                          const SafetensorsSource& source) {
  for (const TensorRef& tensor : AllTensors(spec)) {
    SLUICE_RETURN_IF_ERROR(source.Check(tensor));
  }
  return absl::OkStatus();
}

}  // namespace sluice
