#include "worker/stage/assigned_stage.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "proto/convert.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {
namespace {

absl::StatusOr<LinkTransport> ParseTransport(v1::LinkTransport proto) {
  if (proto == v1::LINK_TRANSPORT_GRPC) return LinkTransport::kGrpc;
  if (proto == v1::LINK_TRANSPORT_NCCL) return LinkTransport::kNccl;
  if (proto == v1::LINK_TRANSPORT_TCP) return LinkTransport::kTcp;
  return InvalidArgument("assignment: unknown link transport ",
                         static_cast<int>(proto));
}

absl::StatusOr<std::shared_ptr<const AssignedModel>> ParseModel(
    const v1::ModelSource& proto) {
  auto model = std::make_shared<AssignedModel>();
  model->config = proto.config();
  for (const v1::ModelContent::File& file : proto.content().files()) {
    model->content.files.push_back({file.name(), file.bytes(), file.hash()});
  }
  model->content.copies = proto.content().copies();
  model->coordinator = proto.coordinator();
  model->peers.assign(proto.peers().begin(), proto.peers().end());
  model->fetchers.assign(proto.fetchers().begin(), proto.fetchers().end());
  SLUICE_ASSIGN_OR_RETURN(model->spec,
                          Annotate(ParseDecoderSpec(model->config),
                                   "assignment: the model's config.json"));
  return model;
}

}  // namespace

std::string AssignedStage::Name() const {
  return absl::StrCat("stage ", stage.value(), " of ", num_stages, " (layers ",
                      layers.begin, " to ", layers.end - 1, ")");
}

absl::StatusOr<AssignedStage> ParseAssignedStage(
    const v1::AssignStage& proto, int32_t num_layers,
    std::shared_ptr<StageReporter> reporter, bool fetches) {
  AssignedStage a;
  if (fetches != proto.has_model()) {
    return absl::InvalidArgumentError(
        fetches ? "assignment: no model, and this worker has none"
                : "assignment: another model, but this worker has one");
  }
  if (fetches) {
    SLUICE_ASSIGN_OR_RETURN(a.model, ParseModel(proto.model()));
    num_layers = a.model->spec.num_layers;
  }
  a.epoch = PlanEpoch(proto.epoch());
  a.stage = StageId(proto.stage());
  a.num_stages = proto.num_stages();
  a.layers = {proto.layers().begin(), proto.layers().end()};
  a.next_address = proto.next_link_address();
  a.max_model_len = proto.max_model_len();
  a.kv_positions = proto.kv_positions();
  a.max_sequences = proto.max_sequences();
  a.num_blocks = proto.num_blocks();
  a.prepare = proto.prepare();
  a.reporter = std::move(reporter);
  if (proto.epoch() < 0) {
    return InvalidArgument("assignment: epoch ", proto.epoch());
  }
  if (a.num_stages <= 0 || proto.stage() < 0 || proto.stage() >= a.num_stages) {
    return InvalidArgument("assignment: stage ", proto.stage(), " of ",
                           a.num_stages);
  }
  if (a.layers.begin < 0 || a.layers.size() <= 0 || a.layers.end > num_layers ||
      a.is_first() != (a.layers.begin == 0) ||
      a.is_last() != (a.layers.end == num_layers)) {
    return InvalidArgument("assignment: layers [", a.layers.begin, ", ",
                           a.layers.end, ") for stage ", a.stage.value(),
                           " of ", a.num_stages, " of a model of ", num_layers,
                           " layers");
  }
  if (a.is_last() != a.next_address.empty()) {
    return InvalidArgument("assignment: stage ", a.stage.value(), " of ",
                           a.num_stages, " with next_link_address \"",
                           a.next_address, "\"");
  }
  if (a.max_model_len <= 0 || a.max_sequences <= 0 || a.num_blocks <= 0) {
    return InvalidArgument("assignment: max_model_len ", a.max_model_len,
                           ", max_sequences ", a.max_sequences, ", num_blocks ",
                           a.num_blocks, ": all must be positive");
  }
  if (a.kv_positions < 0 || a.kv_positions > a.max_model_len) {
    return InvalidArgument("assignment: kv_positions ", a.kv_positions,
                           " of max_model_len ", a.max_model_len);
  }
  SLUICE_ASSIGN_OR_RETURN(a.policy, FromProto(proto.policy()));
  if (!a.is_first()) {
    SLUICE_ASSIGN_OR_RETURN(a.previous_link,
                            ParseTransport(proto.previous_link()));
  }
  if (!a.is_last()) {
    SLUICE_ASSIGN_OR_RETURN(a.next_link, ParseTransport(proto.next_link()));
  }
  return a;
}

}  // namespace sluice
