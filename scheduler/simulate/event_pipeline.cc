#include "scheduler/simulate/event_pipeline.h"

#include <algorithm>
#include <deque>
#include <map>
#include <queue>
#include <tuple>

namespace sluice {
namespace {

class Pipeline {
 public:
  Pipeline(const std::vector<PipelineStage>& stages, int num_blocks,
           double step_seconds, StepSource* source, int64_t max_timeline_events)
      : stages_(stages),
        step_seconds_(step_seconds),
        source_(*source),
        max_timeline_events_(max_timeline_events),
        blocks_(num_blocks) {
    run_.busy.resize(stages.size());
    std::map<int, int> machines;
    for (const PipelineStage& stage : stages) {
      machine_of_.push_back(
          machines.try_emplace(stage.machine, machines.size()).first->second);
    }
    machines_.resize(machines.size());
    for (Block& block : blocks_) block.seconds.resize(stages.size());
  }

  PipelineRun Run() {
    for (int b = 0; b < static_cast<int>(blocks_.size()); ++b) TryNext(b, 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      switch (event.kind) {
        case Kind::kReach:
          machines_[machine_of_[event.stage]].waiting.push_back(
              {event.block, event.stage});
          StartNext(machine_of_[event.stage], event.time);
          break;
        case Kind::kLeave:
          OnLeave(event);
          break;
        case Kind::kReturn:
          OnReturn(event);
          break;
      }
    }
    return std::move(run_);
  }

 private:
  enum class Kind { kReach, kLeave, kReturn };

  struct Event {
    double time;
    int64_t order;  // of events at the same time
    Kind kind;
    int block;
    int stage;
    // Puts the earliest event on top of a queue.
    bool operator<(const Event& other) const {
      return std::tie(time, order) > std::tie(other.time, other.order);
    }
  };

  struct Block {
    bool in_flight = false;
    int64_t step = 0;
    std::vector<double> seconds;  // of its present step, by stage
  };

  struct Waiting {
    int block;
    int stage;
  };

  struct Machine {
    bool busy = false;
    std::deque<Waiting> waiting;
  };

  void Push(double time, Kind kind, int block, int stage) {
    events_.push({time, order_++, kind, block, stage});
  }

  void TryNext(int index, double now) {
    Block& block = blocks_[index];
    if (block.in_flight || !source_.Next(index, now, &block.seconds)) return;
    block.in_flight = true;
    block.step = run_.steps++;
    Push(now, Kind::kReach, index, 0);
  }

  void StartNext(int index, double now) {
    Machine& machine = machines_[index];
    if (machine.busy || machine.waiting.empty()) return;
    const Waiting next = machine.waiting.front();
    machine.waiting.pop_front();
    machine.busy = true;
    Push(now + blocks_[next.block].seconds[next.stage], Kind::kLeave,
         next.block, next.stage);
  }

  void OnLeave(const Event& event) {
    const Block& block = blocks_[event.block];
    const double seconds = block.seconds[event.stage];
    run_.busy[event.stage] += seconds;
    if (static_cast<int64_t>(run_.timeline.size()) < max_timeline_events_) {
      run_.timeline.push_back({event.stage, event.block, block.step,
                               event.time - seconds, event.time});
    }
    if (event.stage + 1 < static_cast<int>(stages_.size())) {
      Push(event.time + stages_[event.stage].hop_seconds, Kind::kReach,
           event.block, event.stage + 1);
    } else {
      Push(event.time + step_seconds_, Kind::kReturn, event.block, 0);
    }
    const int machine = machine_of_[event.stage];
    machines_[machine].busy = false;
    StartNext(machine, event.time);
  }

  void OnReturn(const Event& event) {
    run_.seconds = std::max(run_.seconds, event.time);
    blocks_[event.block].in_flight = false;
    source_.Done(event.block, event.time);
    for (int b = 0; b < static_cast<int>(blocks_.size()); ++b) {
      if (b != event.block) TryNext(b, event.time);
    }
    TryNext(event.block, event.time);
  }

  const std::vector<PipelineStage>& stages_;
  double step_seconds_;
  StepSource& source_;
  int64_t max_timeline_events_;
  std::vector<int> machine_of_;  // by stage: 0-based
  std::vector<Machine> machines_;
  std::vector<Block> blocks_;
  std::priority_queue<Event> events_;
  int64_t order_ = 0;
  PipelineRun run_;
};

}  // namespace

PipelineRun RunPipeline(const std::vector<PipelineStage>& stages,
                        int num_blocks, double step_seconds, StepSource* source,
                        int64_t max_timeline_events) {
  return Pipeline(stages, num_blocks, step_seconds, source, max_timeline_events)
      .Run();
}

}  // namespace sluice
