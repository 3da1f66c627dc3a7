#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/cost/pipeline_time.h"

namespace sluice {

// The steps that the blocks in a pipeline compute.
class StepSource {
 public:
  virtual ~StepSource() = default;
  // The step that is sent next: its block, and in (*seconds)[s], sized for the
  // stages, what stage s takes. False if there is nothing to do now.
  virtual bool Next(double now, int* block, std::vector<double>* seconds) = 0;
  // The step of a block that was sent first has come back.
  virtual void Done(int block, double now) = 0;
};

// One step of one block in one stage.
struct StageEvent {
  int stage = 0;
  int block = 0;
  int64_t step = 0;  // ordinal, in the order in which steps began
  double begin = 0;
  double end = 0;
  friend bool operator==(const StageEvent&, const StageEvent&) = default;
};

struct PipelineRun {
  double seconds = 0;  // until the last step has come back
  int64_t steps = 0;
  std::vector<double> busy;          // seconds of each stage
  std::vector<StageEvent> timeline;  // the first ones, in order of their ends
};

// Follows steps through the stages, event by event, until none is left: a
// machine does one step at a time, in the order in which they reach it; the
// next stage has a step `hop_seconds` after it ended, and the source
// `step_seconds` after it left the last stage. PipelineStage::seconds is not
// used. At the beginning and whenever a step comes back, the source is asked
// for steps as long as it has any. Deterministic; O(log events) for each event,
// and O(1) without a timeline where each stage has a machine of its own.
PipelineRun RunPipeline(const std::vector<PipelineStage>& stages,
                        double step_seconds, StepSource* source,
                        int64_t max_timeline_events);

}  // namespace sluice
