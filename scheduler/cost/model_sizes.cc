#include "scheduler/cost/model_sizes.h"

#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/placement/matrix_layout.h"

namespace sluice {
namespace {

// The bytes of a scale and a minimum, two float16, for each of the elements
// that share them (FlexGen, section 5).
constexpr double kGroupBytes = 4.0 / kPanelGroup;

}  // namespace

int64_t QueryWidth(const DecoderSpec& model) {
  return int64_t{model.num_heads} * model.head_dim;
}

int64_t KvWidth(const DecoderSpec& model) {
  return int64_t{model.num_kv_heads} * model.head_dim;
}

int64_t HeadElements(const DecoderSpec& model) {
  const int64_t projection = model.embed_dim == model.hidden_size
                                 ? 0
                                 : int64_t{model.embed_dim} * model.hidden_size;
  return int64_t{model.vocab_size} * model.embed_dim + projection;
}

double KvBytesPerPosition(const DecoderSpec& model, KvFormat format) {
  const KvLayout layout = {.num_layers = 1,
                           .num_kv_heads = model.num_kv_heads,
                           .head_dim = model.head_dim,
                           .format = format};
  return static_cast<double>(layout.layer_page_bytes()) / kPageTokens;
}

absl::Status CheckModel(const DecoderSpec& model) {
  const auto positive = [](absl::string_view what, int64_t value) {
    if (value > 0) return absl::OkStatus();
    return InvalidArgument("the model's ", what, " is ", value,
                           "; it must be at ", "least 1");
  };
  absl::Status status = positive("number of layers", model.num_layers);
  status.Update(positive("hidden size", model.hidden_size));
  status.Update(positive("embedding width", model.embed_dim));
  status.Update(positive("number of heads", model.num_heads));
  status.Update(positive("number of KV heads", model.num_kv_heads));
  status.Update(positive("head size", model.head_dim));
  status.Update(positive("MLP size", model.intermediate_size));
  if (model.has_mixtures()) {
    const MixtureSpec& mixture = model.mixture;
    status.Update(positive("number of experts", mixture.experts));
    status.Update(positive("expert size", mixture.expert_size));
    status.Update(
        positive("number of experts of a token", mixture.experts_per_token));
    status.Update(
        positive("number of experts less those of a token, plus 1,",
                 int64_t{mixture.experts} - mixture.experts_per_token + 1));
  }
  status.Update(positive("vocabulary", model.vocab_size));
  if (!status.ok()) return status;
  const int64_t rows = int64_t{model.max_positions} + model.position_offset;
  if (model.positions == PositionKind::kLearned && rows < 0) {
    return InvalidArgument("the model's position table has ", rows, " rows");
  }
  if (model.num_heads % model.num_kv_heads != 0) {
    return InvalidArgument("the model's ", model.num_heads,
                           " heads can't share ", model.num_kv_heads,
                           " KV heads evenly");
  }
  return absl::OkStatus();
}

double WeightBytes(int64_t elements, DType dtype, WeightFormat format) {
  const auto n = static_cast<double>(elements);
  switch (format) {
    case WeightFormat::kInt8:
      return n * (1 + kGroupBytes);
    case WeightFormat::kInt4:
      return n * (0.5 + kGroupBytes);
    case WeightFormat::kFull:
      break;
  }
  return n * (dtype == DType::kFloat32 ? 4 : 2);
}

}  // namespace sluice
