#include "scheduler/simulate/event_pipeline.h"

#include <algorithm>
#include <deque>
#include <map>
#include <queue>
#include <set>
#include <tuple>

namespace sluice {
namespace {

// When a stage has a step's first and last micro-batch.
struct Arrival {
  double first = 0;
  double last = 0;
};

// When a stage that begins with the first micro-batch at `begin` has done a
// step whose last one it has at `last`.
double EndOf(const StepTime& time, double begin, double last) {
  return std::max(begin + time.seconds, last + time.seconds - time.spread);
}

// When what a stage ends at `end` is at the next one.
Arrival NextArrival(const StepTime& time, double end, double hop_seconds) {
  return {end - time.spread + hop_seconds, end + hop_seconds};
}

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
    std::vector<StepTime> times;  // by stage
    std::vector<double> begins;   // by stage
    double last = 0;              // when the next stage has all of it
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
        Flight& added = flights_.emplace_back();
        added.times.resize(stages_.size());
        added.begins.resize(stages_.size());
      }
      const int index = free_.back();
      Flight& flight = flights_[index];
      if (!source_.Next(now, &flight.block, &flight.times)) return;
      free_.pop_back();
      flight.last = now;
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
    Flight& flight = flights_[next.flight];
    const StepTime& time = flight.times[next.stage];
    const double end = EndOf(time, now, flight.last);
    flight.begins[next.stage] = now;
    Push(end, Kind::kLeave, next.flight, next.stage);
    if (next.stage + 1 == static_cast<int>(stages_.size())) return;
    const Arrival arrival =
        NextArrival(time, end, stages_[next.stage].hop_seconds);
    flight.last = arrival.last;
    Push(arrival.first, Kind::kReach, next.flight, next.stage + 1);
  }

  void OnLeave(const Event& event) {
    const Flight& flight = flights_[event.flight];
    run_.busy[event.stage] += flight.times[event.stage].seconds;
    if (static_cast<int64_t>(run_.timeline.size()) < max_timeline_events_) {
      run_.timeline.push_back({event.stage, flight.block, flight.step,
                               flight.begins[event.stage], event.time});
    }
    if (event.stage + 1 == static_cast<int>(stages_.size())) {
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
  std::vector<StepTime> times(stages.size());
  std::deque<Flight> flights;
  double now = 0;
  for (;;) {
    int block = 0;
    while (source->Next(now, &block, &times)) {
      ++run.steps;
      Arrival arrival = {now, now};
      for (size_t s = 0; s < stages.size(); ++s) {
        free[s] =
            EndOf(times[s], std::max(arrival.first, free[s]), arrival.last);
        run.busy[s] += times[s].seconds;
        arrival = NextArrival(times[s], free[s], stages[s].hop_seconds);
      }
      flights.push_back({block, free.back() + step_seconds});
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
