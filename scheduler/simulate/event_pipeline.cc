#include "scheduler/simulate/event_pipeline.h"

#include <algorithm>
#include <deque>
#include <map>
#include <queue>
#include <set>
#include <tuple>

namespace sluice {
namespace {

class Pipeline {
 public:
  Pipeline(const std::vector<PipelineStage>& stages, double step_seconds,
           StepSource* source, int64_t max_timeline_events)
      : stages_(stages),
        step_seconds_(step_seconds),
        source_(*source),
        max_timeline_events_(max_timeline_events) {
    run_.busy.resize(stages.size());
    std::map<int, int> machines;
    for (const PipelineStage& stage : stages) {
      machine_of_.push_back(
          machines.try_emplace(stage.machine, machines.size()).first->second);
    }
    machines_.resize(machines.size());
  }

  PipelineRun Run() {
    TakeSteps(0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      switch (event.kind) {
        case Kind::kReach:
          machines_[machine_of_[event.stage]].waiting.push_back(
              {event.flight, event.stage});
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
    int flight;
    int stage;
    friend bool operator<(const Event& a, const Event& b) {
      return std::tie(a.time, a.order) > std::tie(b.time, b.order);
    }
  };
  // A step on its way.
  struct Flight {
    int block = 0;
    int64_t step = 0;
    std::vector<double> seconds;  // by stage
  };
  struct Waiting {
    int flight;
    int stage;
  };
  struct Machine {
    bool busy = false;
    std::deque<Waiting> waiting;
  };

  void Push(double time, Kind kind, int flight, int stage) {
    events_.push({time, order_++, kind, flight, stage});
  }

  void TakeSteps(double now) {
    for (;;) {
      if (free_.empty()) {
        free_.push_back(static_cast<int>(flights_.size()));
        flights_.emplace_back().seconds.resize(stages_.size());
      }
      const int index = free_.back();
      Flight& flight = flights_[index];
      if (!source_.Next(now, &flight.block, &flight.seconds)) return;
      free_.pop_back();
      flight.step = run_.steps++;
      Push(now, Kind::kReach, index, 0);
    }
  }

  void StartNext(int index, double now) {
    Machine& machine = machines_[index];
    if (machine.busy || machine.waiting.empty()) return;
    const Waiting next = machine.waiting.front();
    machine.waiting.pop_front();
    machine.busy = true;
    Push(now + flights_[next.flight].seconds[next.stage], Kind::kLeave,
         next.flight, next.stage);
  }

  void OnLeave(const Event& event) {
    const Flight& flight = flights_[event.flight];
    const double seconds = flight.seconds[event.stage];
    run_.busy[event.stage] += seconds;
    if (static_cast<int64_t>(run_.timeline.size()) < max_timeline_events_) {
      run_.timeline.push_back({event.stage, flight.block, flight.step,
                               event.time - seconds, event.time});
    }
    if (event.stage + 1 < static_cast<int>(stages_.size())) {
      Push(event.time + stages_[event.stage].hop_seconds, Kind::kReach,
           event.flight, event.stage + 1);
    } else {
      Push(event.time + step_seconds_, Kind::kReturn, event.flight, 0);
    }
    const int machine = machine_of_[event.stage];
    machines_[machine].busy = false;
    StartNext(machine, event.time);
  }

  void OnReturn(const Event& event) {
    run_.seconds = std::max(run_.seconds, event.time);
    source_.Done(flights_[event.flight].block, event.time);
    free_.push_back(event.flight);
    TakeSteps(event.time);
  }

  const std::vector<PipelineStage>& stages_;
  double step_seconds_;
  StepSource& source_;
  int64_t max_timeline_events_;
  std::vector<int> machine_of_;  // by stage: 0-based
  std::vector<Machine> machines_;
  std::vector<Flight> flights_;
  std::vector<int> free_;  // of flights_
  std::priority_queue<Event> events_;
  int64_t order_ = 0;
  PipelineRun run_;
};

// The same for stages on machines of their own and no timeline: steps stay in
// the order in which they were sent, so that a stage's next step and its begin
// are known without events.
PipelineRun FollowInOrder(const std::vector<PipelineStage>& stages,
                          double step_seconds, StepSource* source) {
  struct Flight {
    int block;
    double back;
  };
  PipelineRun run;
  run.busy.resize(stages.size());
  std::vector<double> free(stages.size());  // when the stage is
  std::vector<double> seconds(stages.size());
  std::deque<Flight> flights;
  double now = 0;
  for (;;) {
    int block = 0;
    while (source->Next(now, &block, &seconds)) {
      ++run.steps;
      double time = now;
      for (size_t s = 0; s < stages.size(); ++s) {
        time = std::max(time, free[s]) + seconds[s];
        free[s] = time;
        run.busy[s] += seconds[s];
        time += s + 1 < stages.size() ? stages[s].hop_seconds : step_seconds;
      }
      flights.push_back({block, time});
    }
    if (flights.empty()) return run;
    const Flight first = flights.front();
    flights.pop_front();
    now = run.seconds = first.back;
    source->Done(first.block, now);
  }
}

bool HasSharedMachine(const std::vector<PipelineStage>& stages) {
  std::set<int> machines;
  for (const PipelineStage& stage : stages) {
    if (!machines.insert(stage.machine).second) return true;
  }
  return false;
}

}  // namespace

PipelineRun RunPipeline(const std::vector<PipelineStage>& stages,
                        double step_seconds, StepSource* source,
                        int64_t max_timeline_events) {
  if (max_timeline_events == 0 && !HasSharedMachine(stages)) {
    return FollowInOrder(stages, step_seconds, source);
  }
  return Pipeline(stages, step_seconds, source, max_timeline_events).Run();
}

}  // namespace sluice
