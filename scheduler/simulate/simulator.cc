#include "scheduler/simulate/simulator.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "common/status_macros.h"
#include "scheduler/plan/stage_case.h"
#include "scheduler/steps/step_scheduler.h"

namespace sluice {
namespace {

// Stages that take as long as each other for any step.
struct StageKind {
  StageCase stage;
  Fractions fractions = {};
  StepTime time;  // of the present step
  ResourceSeconds busy = {};
};

// The spread of a step's micro-batches: a stage hands them on as its last layer
// has computed them, or row by row as all its layers have, and takes them in as
// its first layer does.
double SpreadOf(const StageCase& stage, const StepShape& step, double seconds,
                const ResourceSeconds& busy) {
  // While weights stream, the cores do a layer's micro-batches when these are
  // there, one after the other.
  const double computing =
      std::max(busy[static_cast<int>(Resource::kDeviceCompute)],
               busy[static_cast<int>(Resource::kHostCompute)]);
  const double passes = stage.policy.schedule == Schedule::kRowByRow
                            ? 1.0
                            : static_cast<double>(stage.layers.size());
  return std::min(seconds, computing) * (step.micro_batches - 1) /
         (step.micro_batches * passes);
}

// Returns what a request of a class begins with: whole pages, the nearest to
// the average, which has the first ones' none in it. All begin alike, so that
// only one more computes it.
std::vector<int32_t> SharedTokens(const LengthClass& lengths, int32_t page) {
  const int32_t pages =
      std::min((lengths.shared + page / 2) / page, (lengths.prompt - 1) / page);
  return std::vector<int32_t>(static_cast<size_t>(pages * page));
}

// Forms steps and prices them.
class Job : public StepSource {
 public:
  Job(const Workload& workload, StepScheduler scheduler,
      std::vector<StageKind> kinds, std::vector<int> kind_of_stage,
      int num_blocks, int32_t page)
      : scheduler_(std::move(scheduler)),
        kinds_(std::move(kinds)),
        kind_of_stage_(std::move(kind_of_stage)),
        flights_(num_blocks) {
    RequestOrder order(workload);
    for (int64_t i = workload.requests(); i > 0; --i, order.Pop()) {
      const LengthClass& lengths = order.Head();
      const SequenceId id(static_cast<int64_t>(requests_.size()));
      requests_.push_back({.left = lengths.output});
      scheduler_.Enqueue(id, lengths.prompt, lengths.prompt + lengths.output, 0,
                         SharedTokens(lengths, page));
    }
  }

  bool Next(double now, int* block, std::vector<StepTime>* times) override {
    auto next = scheduler_.FormNext();
    if (!next.has_value()) return false;
    *block = next->block.value();
    StepScheduler::StepDecision& decision = next->decision;
    for (const SequenceId id : decision.admit) {
      requests_[id.value()].admitted = now;
    }
    const StepShape step = ShapeOf(decision);
    for (StageKind& kind : kinds_) {
      kind.time = {};
      if (step.micro_batches == 0) continue;
      ResourceSeconds busy = {};
      const double seconds =
          PriceStep(kind.stage, step, kind.fractions, 1, &busy);
      kind.time = {seconds, SpreadOf(kind.stage, step, seconds, busy)};
      for (int r = 0; r < kNumResources; ++r) kind.busy[r] += busy[r];
    }
    for (size_t s = 0; s < kind_of_stage_.size(); ++s) {
      (*times)[s] = kinds_[kind_of_stage_[s]].time;
    }
    flights_[*block].push_back(std::move(decision));
    return true;
  }

  void Done(int block, double now) override {
    scheduler_.OnStepDone(BlockId(block));
    const StepScheduler::StepDecision decision =
        std::move(flights_[block].front());
    flights_[block].pop_front();
    for (const std::vector<Segment>& micro_batch : decision.micro_batches) {
      for (const Segment& segment : micro_batch) {
        if (!segment.sample) continue;
        ++tokens_;
        Request& request = requests_[segment.sequence.value()];
        if (--request.left > 0) continue;
        latency_ += now - request.admitted;
        scheduler_.Finish(segment.sequence);
      }
    }
  }

  int64_t tokens() const { return tokens_; }
  double mean_latency() const {
    return latency_ / static_cast<double>(requests_.size());
  }
  const ResourceSeconds& busy(int stage) const {
    return kinds_[kind_of_stage_[stage]].busy;
  }

 private:
  struct Request {
    int32_t left = 0;  // tokens to generate
    double admitted = 0;
  };

  static StepShape ShapeOf(const StepScheduler::StepDecision& decision) {
    StepShape step;
    step.count = 1;
    step.micro_batches = static_cast<double>(decision.micro_batches.size());
    for (const std::vector<Segment>& micro_batch : decision.micro_batches) {
      for (const Segment& segment : micro_batch) {
        const double start = segment.start;
        const double rows = segment.num_tokens;
        // A row attends to all positions up to its own.
        const double pairs = rows * start + rows * (rows + 1) / 2;
        // A sequence decodes from its second step on that samples: one row
        // behind what was there. A last chunk of one row counts as decoding,
        // which costs the same.
        if (start > 0 && segment.num_tokens == 1) {
          step.decode_rows += 1;
          step.decode_positions += pairs;
        } else {
          step.prefill_rows += rows;
          step.prefill_chunks += 1;
          step.prefill_pairs += pairs;
        }
        step.read_positions += start;
        if (segment.sample) step.head_rows += 1;
      }
    }
    return step;
  }

  StepScheduler scheduler_;
  std::vector<StageKind> kinds_;
  std::vector<int> kind_of_stage_;
  // Steps in flight, by block.
  std::vector<std::deque<StepScheduler::StepDecision>> flights_;
  std::vector<Request> requests_;
  int64_t tokens_ = 0;
  double latency_ = 0;
};

struct Stages {
  std::vector<StageKind> kinds;
  std::vector<int> kind_of_stage;
  std::vector<PipelineStage> pipeline;
  double step_seconds = 0;
};

// A plan's stages, those that cost the same as one kind.
absl::StatusOr<Stages> StagesOf(const PlanRequest& request, const Plan& plan) {
  const MachineClasses classes(request.machines);
  Stages stages;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    if (stage.machine < 0 ||
        stage.machine >= static_cast<int>(request.machines.size())) {
      return InvalidArgument("simulation: stage ", s, " is on machine ",
                             stage.machine, " of ", request.machines.size());
    }
    const MachineProfile& machine = request.machines[stage.machine];
    stages.pipeline.push_back({.machine = classes.host(stage.machine)});
    if (s > 0) {
      stages.pipeline[s - 1].hop_seconds =
          HopSeconds(request.machines[plan.stages[s - 1].machine], machine);
    }
    stages.step_seconds = std::max(stages.step_seconds, machine.step_seconds);
    StageCase stage_case = MakeStageCase(request, stage.machine, stage.layers,
                                         stage.policy, plan.block);
    stage_case.ranks = stage_case.Ranks();
    stage_case.machine =
        &request.machines[classes.representative(stage.machine)];
    const bool first = stage.layers.begin == 0;
    const bool last = stage.layers.end == request.model.num_layers;
    const auto same = std::find_if(
        stages.kinds.begin(), stages.kinds.end(), [&](const StageKind& kind) {
          const LayerRange& layers = kind.stage.layers;
          return kind.stage.machine == stage_case.machine &&
                 layers.size() == stage.layers.size() &&
                 (layers.begin == 0) == first &&
                 (layers.end == request.model.num_layers) == last &&
                 kind.stage.ranks->lead().kv_groups.sizes ==
                     stage_case.ranks->lead().kv_groups.sizes &&
                 kind.stage.policy == stage.policy;
        });
    stages.kind_of_stage.push_back(
        static_cast<int>(same - stages.kinds.begin()));
    if (same == stages.kinds.end()) {
      stages.kinds.push_back(
          {.stage = stage_case, .fractions = FractionsOf(stage.policy)});
    }
  }
  stages.step_seconds += WayBackSeconds(request, plan.stages.back().machine,
                                        plan.stages.front().machine);
  return stages;
}

absl::StatusOr<StepScheduler> SchedulerOf(const PlanRequest& request,
                                          const Plan& plan, int32_t page) {
  const int64_t slots = int64_t{plan.block.gbs} * plan.block.num_microbatches *
                        plan.block.num_blocks;
  const int64_t longest = (request.workload.longest() + page - 1) / page;
  const int64_t wanted = slots * longest;
  // Pages are taken by need if they are fewer than all slots may come to hold.
  const int64_t pages =
      plan.kv_positions > 0 ? plan.kv_positions / page : wanted;
  if (pages < longest) {
    return InvalidArgument("simulation: the plan has ", pages, " KV pages of ",
                           page, " positions; the longest request wants ",
                           longest);
  }
  return StepScheduler::Create(
      {.num_blocks = plan.block.num_blocks,
       .gbs = plan.block.gbs,
       .num_microbatches = plan.block.num_microbatches,
       .max_step_tokens = plan.block.max_step_tokens,
       .steps_in_flight = plan.block.steps_in_flight,
       .slice_context = plan.block.slice_context,
       .kv_pages = pages,
       .page_tokens = page,
       .refill = plan.block.refill,
       .reserve = pages < wanted ? StepScheduler::Reserve::kProfile
                                 : StepScheduler::Reserve::kMaximum,
       .share_prefixes = request.workload.shared_tokens() > 0});
}

}  // namespace

absl::StatusOr<SimulationResult> Simulate(const PlanRequest& request,
                                          const Plan& plan,
                                          const SimulationOptions& options) {
  SLUICE_RETURN_IF_ERROR(request.Check());
  if (plan.stages.empty()) {
    return absl::InvalidArgumentError("simulation: the plan has no stages");
  }
  if (options.page_tokens <= 0) {
    return InvalidArgument("simulation: pages of ", options.page_tokens,
                           " tokens");
  }
  if (HasRankChoice(request.machines)) {
    PlanRequest named = request;
    SLUICE_ASSIGN_OR_RETURN(
        named.machines,
        WithNamedRanks(std::move(named.machines), ChoicesOf(plan)));
    return Simulate(named, plan, options);
  }
  if (request.workload.shared_tokens() > 0 &&
      !SharesPrefixes(request, ChoicesOf(plan))) {
    return Simulate(Unshared(request), plan, options);
  }
  SLUICE_ASSIGN_OR_RETURN(Stages stages, StagesOf(request, plan));
  SLUICE_ASSIGN_OR_RETURN(StepScheduler scheduler,
                          SchedulerOf(request, plan, options.page_tokens));
  Job job(request.workload, std::move(scheduler), std::move(stages.kinds),
          std::move(stages.kind_of_stage), plan.block.num_blocks,
          options.page_tokens);
  PipelineRun run = RunPipeline(stages.pipeline, stages.step_seconds, &job,
                                options.max_timeline_events);

  SimulationResult result;
  result.seconds = run.seconds;
  result.steps = run.steps;
  result.tokens = job.tokens();
  result.latency_seconds = job.mean_latency();
  result.timeline = std::move(run.timeline);
  if (run.seconds > 0) {
    result.tokens_per_second = static_cast<double>(result.tokens) / run.seconds;
  }
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    result.stages.push_back(
        {.busy = job.busy(static_cast<int>(s)),
         .seconds = run.busy[s],
         .utilization = run.seconds > 0 ? run.busy[s] / run.seconds : 0});
  }
  return result;
}

}  // namespace sluice
