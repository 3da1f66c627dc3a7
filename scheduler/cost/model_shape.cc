#include "scheduler/cost/model_shape.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sluice {
namespace {

// Elements that share a scale and a minimum, two float16 (FlexGen, section 5).
constexpr int32_t kGroup = 64;
constexpr double kGroupBytes = 4;

}  // namespace

int64_t ModelShape::layer_elements() const {
  const int64_t attention =
      2 * query_width() * hidden + 2 * kv_width() * int64_t{hidden};
  return attention + int64_t{gated_mlp ? 3 : 2} * hidden * intermediate;
}

int64_t ModelShape::embedding_elements() const {
  const int64_t projection = embed == hidden ? 0 : int64_t{embed} * hidden;
  return int64_t{vocab} * embed + int64_t{position_rows} * hidden + projection;
}

int64_t ModelShape::stage_elements(LayerRange layers) const {
  int64_t elements = layers.size() * layer_elements();
  if (layers.begin == 0) elements += embedding_elements();
  if (layers.end == num_layers) elements += head_elements();
  return elements;
}

double ModelShape::kv_bytes_per_position(KvFormat format) const {
  const int32_t groups = (head_dim + kGroup - 1) / kGroup;
  double head = 0;  // bytes of K, or V, of one head
  switch (format) {
    case KvFormat::kFloat32:
      head = 4.0 * head_dim;
      break;
    case KvFormat::kBFloat16:
    case KvFormat::kFloat16:
      head = 2.0 * head_dim;
      break;
    case KvFormat::kInt8:
      head = head_dim + kGroupBytes * groups;
      break;
    case KvFormat::kInt4:
      head = (head_dim + 1) / 2 + kGroupBytes * groups;
      break;
  }
  return 2 * kv_heads * head;
}

absl::Status ModelShape::Check() const {
  const auto positive = [](absl::string_view what, int64_t value) {
    if (value > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the model's ", what, " is ", value, "; it must be at ", "least 1"));
  };
  absl::Status status = positive("number of layers", num_layers);
  status.Update(positive("hidden size", hidden));
  status.Update(positive("embedding width", embed));
  status.Update(positive("number of heads", heads));
  status.Update(positive("number of KV heads", kv_heads));
  status.Update(positive("head size", head_dim));
  status.Update(positive("MLP size", intermediate));
  status.Update(positive("vocabulary", vocab));
  if (!status.ok()) return status;
  if (position_rows < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the model's position table has ", position_rows, " rows"));
  }
  if (heads % kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's ", heads, " heads can't share ", kv_heads,
                     " KV heads evenly"));
  }
  return absl::OkStatus();
}

double WeightBytes(int64_t elements, DType dtype, WeightFormat format) {
  const auto n = static_cast<double>(elements);
  switch (format) {
    case WeightFormat::kInt8:
      return n * (1 + kGroupBytes / kGroup);
    case WeightFormat::kInt4:
      return n * (0.5 + kGroupBytes / kGroup);
    case WeightFormat::kFull:
      break;
  }
  return n * (dtype == DType::kFloat32 ? 4 : 2);
}

}  // namespace sluice
