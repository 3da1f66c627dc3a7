#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types.h"
#include "runtime/exec/stage_options.h"
#include "runtime/model/checkpoint/model_content.h"
#include "runtime/model/decoder_spec.h"
#include "worker/link/link.h"

namespace sluice {

class StageReporter;

namespace v1 {
class AssignStage;
}  // namespace v1

// The model of a worker that has no copy of it, and who has.
struct AssignedModel {
  ModelContent content;
  std::string config;  // the text of config.json
  DecoderSpec spec;    // what that says
  bool coordinator = false;
  std::vector<std::string> peers;     // workers with whole files
  std::vector<std::string> fetchers;  // with parts of them, perhaps
};

// One worker's part of a plan.
struct AssignedStage : StageShare {
  PlanEpoch epoch;
  StageId stage;
  int32_t num_stages = 0;
  std::string next_address;  // "" on the last stage
  // The transports from the stage before and to the next one.
  LinkTransport previous_link = LinkTransport::kGrpc;
  LinkTransport next_link = LinkTransport::kGrpc;
  int32_t num_blocks = 0;
  // Whether to load only: another assignment of this epoch begins the plan.
  bool prepare = false;
  std::shared_ptr<const AssignedModel> model;  // null: the worker's own
  std::shared_ptr<StageReporter> reporter;

  bool is_first() const { return stage.value() == 0; }
  bool is_last() const { return stage.value() == num_stages - 1; }
  // "stage 1 of 3 (layers 4 to 7)", for messages.
  std::string Name() const;
};

// Checks that stage, layers and next address fit together and to a model of
// `num_layers` layers, or to the assigned one; kInvalidArgument names what does
// not. `fetches`: whether a model must be assigned.
absl::StatusOr<AssignedStage> ParseAssignedStage(
    const v1::AssignStage& proto, int32_t num_layers,
    std::shared_ptr<StageReporter> reporter, bool fetches = false);

}  // namespace sluice
