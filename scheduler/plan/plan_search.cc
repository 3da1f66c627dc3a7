#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "common/text/bytes_text.h"
#include "scheduler/plan/partition.h"
#include "scheduler/plan/plan.h"
#include "scheduler/plan/plan_builder.h"
#include "scheduler/plan/plan_candidates.h"
#include "scheduler/plan/policy_search.h"
#include "scheduler/plan/slice_choice.h"
#include "scheduler/plan/stage_case.h"
#include "scheduler/simulate/simulator.h"

// MakePlan and Frontier: what is outside the linear programs. For a candidate
// each stage has its own best policy (SolveStage), and the pipeline's closed
// form says how long the job takes. Candidates are taken in the order of a
// lower bound that costs no linear program, so that most of them are never
// solved: first a coarse grid, then, from the best of it, steps in the fine
// grid as long as they help.

namespace sluice {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Candidates of the coarse grid from which the fine one is searched, at least.
constexpr size_t kStarts = 3;
// The best candidates, of which a short job is simulated.
constexpr int kRehearsals = 6;
constexpr double kLeeway = 1.05;
// If the best one's simulated job takes longer than the closed form says by
// more than this factor, up to about so many more are simulated.
constexpr double kEmptyFactor = 1.03;
constexpr int kMoreRehearsals = 24;
// Plans that differ less are equals: the one with the smaller block is better.
constexpr double kEqual = 1e-6;

enum class Objective { kThroughput, kLatency };

// The outcome of trying a candidate.
struct Outcome {
  enum class Kind { kSolved, kBounded, kNoBetter, kTooLarge, kTooSlow };
  Kind kind = Kind::kBounded;
  double seconds = kInfinity;  // of the job: kBounded: at least so many
  double latency = kInfinity;
  std::optional<Plan> plan;  // kSolved
  double correction = 0;     // of seconds, by Rehearse(); 0: not rehearsed
};

class PlanSearch {
 public:
  explicit PlanSearch(const PlanRequest& request, int rehearsals = kRehearsals)
      : request_(request),
        rehearsals_(rehearsals),
        classes_(request.machines),
        shares_(request.workload.shared_tokens() > 0) {
    std::map<int, size_t> group_of;
    for (int m = 0; m < static_cast<int>(request.machines.size()); ++m) {
      const auto [it, is_new] =
          group_of.try_emplace(classes_.host(m), groups_.size());
      if (is_new) groups_.emplace_back();
      groups_[it->second].push_back(m);
    }
    order_.resize(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g) order_[g] = g;
    for (int layer = 0; layer < request.model.num_layers; ++layer) {
      const LayerSpec& first = request_.model.layer(0);
      const LayerSpec& other = request_.model.layer(layer);
      unlike_layers_ |=
          other.codes != first.codes || other.mixture != first.mixture;
      windows_before_.push_back(
          windows_before_.back() +
          (request.model.layer(layer).window > 0 ? 1 : 0));
    }
  }

  absl::StatusOr<PlanResult> Run(Objective objective, double max_latency);
  // Returns the best plan alone. Run() is this, and what is said of others.
  absl::StatusOr<PlanResult> RunQuick(Objective objective, double max_latency);

 private:
  const std::vector<StepShape>& Steps(const BlockShape& block) {
    const std::array<int32_t, 6> key = {block.gbs,
                                        block.num_microbatches,
                                        block.num_blocks,
                                        block.max_step_tokens,
                                        block.steps_in_flight,
                                        block.slice_context};
    const auto [it, is_new] = steps_.try_emplace(key);
    if (is_new) it->second = JobSteps(request_, block);
    return it->second;
  }

  StageQuestion Question(const Candidate& c, int machine, LayerRange layers) {
    return {.request = &request_,
            .machine = machine,
            .layers = layers,
            .block = c.block,
            .weights = c.weights,
            .kv = c.kv,
            .steps = Steps(c.block)};
  }

  // Returns a stage's question's key, the same for machines that are alike.
  int64_t Key(const Candidate& c, int machine, LayerRange layers) {
    if (!last_ || *last_ < c || c < *last_) {
      last_ = c;
      last_id_ = ids_.try_emplace(c, ids_.size()).first->second;
    }
    const bool first = layers.begin == 0;
    const bool last = layers.end == request_.model.num_layers;
    int64_t key = last_id_;
    key = key * static_cast<int64_t>(request_.machines.size()) +
          classes_.representative(machine);
    key = key * (request_.model.num_layers + 1) + layers.size();
    // Layers are alike but for their windows, the codes that they keep, and
    // whether they are mixtures.
    if (unlike_layers_) {
      key = key * (request_.model.num_layers + 1) + layers.begin;
    }
    key = key * (request_.model.num_layers + 1) + windows_before_[layers.end] -
          windows_before_[layers.begin];
    return key * 4 + (first ? 2 : 0) + (last ? 1 : 0);
  }

  // The first error is kept in status_ and ends the search.
  const StageAnswer& Answer(const Candidate& c, int machine,
                            LayerRange layers) {
    std::unique_ptr<StageAnswer>& kept = answers_[Key(c, machine, layers)];
    if (kept != nullptr) return *kept;
    kept = std::make_unique<StageAnswer>();
    if (!status_.ok()) return *kept;
    auto solved = SolveStage(Question(c, machine, layers), &programs_);
    if (solved.ok()) {
      *kept = *std::move(solved);
    } else {
      status_ = solved.status();
    }
    return *kept;
  }

  double Bound(const Candidate& c, int machine, LayerRange layers) {
    const auto [it, is_new] = bounds_.try_emplace(Key(c, machine, layers), 0);
    if (is_new) it->second = StageBound(Question(c, machine, layers));
    return it->second;
  }

  // Returns no stages if no split fits or, where it is to be balanced, none
  // takes less than so many seconds.
  std::vector<BalancedStage> SplitOf(const Candidate& c, StageCostFunction cost,
                                     double less_than) const;
  // Seconds of the job that the split at its best cannot be below.
  double BoundOf(const Candidate& c);
  // Plans a candidate, whose slowest machine must take less than `less_than`.
  Outcome Try(const Candidate& c, double less_than = kInfinity);
  // Considers a candidate and keeps its outcome, and the best.
  void Consider(const Candidate& c, double bound);
  void Refine(const Candidate& start, const Grid& grid);
  void TryOrders();
  // Simulates a candidate that is solved, and keeps it if it is the best.
  absl::Status RehearseOne(const Candidate& c, Outcome* outcome);
  absl::Status RehearseBest();
  absl::Status RefineRehearsed();
  // Tries the best plan's block with prompts cut in other ways.
  absl::Status TrySlicings();

  double Latency(const Candidate& c, double seconds) {
    return LatencySeconds(request_, c.block, Steps(c.block), seconds);
  }
  double Score(const Candidate& c, double seconds) {
    return objective_ == Objective::kLatency ? Latency(c, seconds) : seconds;
  }
  // The candidates with plans, by their scores, the best first.
  std::vector<std::pair<double, Candidate>> Solved() {
    std::vector<std::pair<double, Candidate>> solved;
    for (const auto& [c, outcome] : outcomes_) {
      if (outcome.kind == Outcome::Kind::kSolved) {
        solved.emplace_back(Score(c, outcome.seconds), c);
      }
    }
    std::sort(solved.begin(), solved.end());
    return solved;
  }
  // Those of them from which the fine grid is searched: the best, and the best
  // with each number of blocks, from which no step of the search leads to
  // others: few blocks need slices to keep the pipeline full, many do not.
  std::vector<Candidate> Starts() {
    std::vector<Candidate> starts;
    std::set<int32_t> blocks;
    for (const auto& [score, c] : Solved()) {
      if (blocks.insert(c.block.num_blocks).second || starts.size() < kStarts) {
        starts.push_back(c);
      }
    }
    return starts;
  }
  double BestScore() const { return best_ ? best_score_ : kInfinity; }

  absl::Status NothingFits();
  PlanResult Result() const;  // REQUIRES: best_
  std::vector<Alternative> Alternatives();
  std::string WhyNot(const Candidate& c, const Outcome& outcome);

  const PlanRequest& request_;
  const int rehearsals_;
  const MachineClasses classes_;
  std::vector<std::vector<int>> groups_;  // workers by machine
  std::vector<size_t> order_;             // of the groups, in the pipeline
  // For each layer, and the end, the layers before it that have a window.
  std::vector<int32_t> windows_before_ = {0};
  bool unlike_layers_ = false;
  const bool shares_;  // requests begin alike
  std::map<std::array<int32_t, 6>, std::vector<StepShape>> steps_;
  std::map<Candidate, int64_t> ids_;
  std::optional<Candidate> last_;  // asked about, and its id
  int64_t last_id_ = 0;
  absl::flat_hash_map<int64_t, std::unique_ptr<StageAnswer>> answers_;
  absl::flat_hash_map<int64_t, double> bounds_;
  absl::Status status_;
  int64_t programs_ = 0;

  Objective objective_ = Objective::kThroughput;
  double max_latency_ = kInfinity;
  std::map<Candidate, Outcome> outcomes_;
  // Plans with their closed form's seconds: a frontier repeats some questions.
  std::map<Candidate, std::pair<double, Plan>> rehearsed_;
  std::optional<Candidate> best_;
  double best_score_ = kInfinity;
};

std::vector<BalancedStage> PlanSearch::SplitOf(const Candidate& c,
                                               StageCostFunction cost,
                                               double less_than) const {
  if (request_.split == Split::kBalanced) {
    std::vector<std::vector<int>> machines;
    for (const size_t g : order_) machines.push_back(groups_[g]);
    return SplitBalanced(request_.model.num_layers, machines, cost, less_than);
  }
  std::vector<BalancedStage> stages;
  for (const LayerRange& layers :
       SplitEvenly(request_.model.num_layers, NumStages(request_))) {
    const int worker = static_cast<int>(stages.size());
    if (!std::isfinite(cost(worker, layers))) return {};
    stages.push_back({worker, layers});
  }
  return stages;
}

double PlanSearch::BoundOf(const Candidate& c) {
  const auto bound = [&](int machine, LayerRange layers) {
    return Bound(c, machine, layers);
  };
  std::map<int, double> machines;
  double longest = 0;
  for (const BalancedStage& stage : SplitOf(c, bound, kInfinity)) {
    double& seconds = machines[classes_.host(stage.worker)];
    seconds += bound(stage.worker, stage.layers);
    longest = std::max(longest, seconds);
  }
  return longest;
}

Outcome PlanSearch::Try(const Candidate& c, double less_than) {
  const std::vector<BalancedStage> split = SplitOf(
      c,
      [&](int machine, LayerRange layers) {
        const StageAnswer& answer = Answer(c, machine, layers);
        return answer.fits ? answer.seconds : kInfinity;
      },
      less_than);
  Outcome outcome;
  if (split.empty()) {
    outcome.kind =
        request_.split == Split::kBalanced && std::isfinite(less_than)
            ? Outcome::Kind::kNoBetter
            : Outcome::Kind::kTooLarge;
    return outcome;
  }
  std::vector<StageChoice> stages;
  for (const BalancedStage& stage : split) {
    stages.push_back({stage.worker, stage.layers,
                      Answer(c, stage.worker, stage.layers).policy});
  }
  BlockShape block = c.block;
  if (block.steps_in_flight > 0) {
    block.steps_in_flight = StepsInFlight(true, static_cast<int>(split.size()));
  }
  // Stages are solved as if they shared. What they may hold does not depend on
  // it where they turn out not to.
  if (!shares_ || SharesPrefixes(request_, stages)) {
    outcome.plan = BuildPlan(request_, stages, block, Steps(c.block));
  } else {
    const PlanRequest unshared = Unshared(request_);
    outcome.plan =
        BuildPlan(unshared, stages, block, JobSteps(unshared, block));
  }
  outcome.seconds = outcome.plan->seconds;
  outcome.latency = outcome.plan->latency_seconds;
  outcome.kind = outcome.latency > max_latency_ ? Outcome::Kind::kTooSlow
                                                : Outcome::Kind::kSolved;
  return outcome;
}

void PlanSearch::Consider(const Candidate& c, double bound) {
  if (!status_.ok() || outcomes_.contains(c)) return;
  Outcome outcome = {.seconds = bound, .latency = Latency(c, bound)};
  if (outcome.latency > max_latency_) {
    // A candidate always too slow tells the least latency only if it fits.
    outcome.kind = Outcome::Kind::kTooSlow;
  } else if (Score(c, bound) < (1 - kEqual) * BestScore()) {
    // A job takes no less than its slowest machine. Some leeway, for the closed
    // form to be corrected.
    const double less_than = objective_ == Objective::kThroughput
                                 ? kLeeway * BestScore()
                                 : kInfinity;
    outcome = Try(c, less_than);
  }
  if (outcome.kind == Outcome::Kind::kSolved) {
    const double score = Score(c, outcome.seconds);
    const bool is_better =
        score < (1 - kEqual) * BestScore() ||
        (best_ && score <= (1 + kEqual) * best_score_ && c < *best_);
    if (is_better) {
      best_ = c;
      best_score_ = score;
    }
  }
  outcomes_.emplace(c, std::move(outcome));
}

void PlanSearch::Refine(const Candidate& start, const Grid& grid) {
  const auto score = [&](const Candidate& c) {
    const auto it = outcomes_.find(c);
    return it != outcomes_.end() && it->second.kind == Outcome::Kind::kSolved
               ? Score(c, it->second.seconds)
               : kInfinity;
  };
  Candidate at = start;
  while (status_.ok()) {
    Candidate next = at;
    for (const BlockShape& block : NeighboursOf(request_, grid, at.block)) {
      const Candidate c = {block, at.weights, at.kv};
      Consider(c, BoundOf(c));
      if (score(c) < (1 - kEqual) * score(next)) next = c;
    }
    if (!(score(next) < (1 - kEqual) * score(at))) return;
    at = next;
  }
}

// Which machine comes first and which last matters, for the embedding and the
// LM head; the order of those in between does not.
void PlanSearch::TryOrders() {
  if (request_.split != Split::kBalanced || !best_ || groups_.size() < 2) {
    return;
  }
  const auto kind_of = [&](size_t group) {
    std::vector<int> kind;
    for (const int m : groups_[group]) {
      kind.push_back(classes_.representative(m));
    }
    return kind;
  };
  const Candidate c = *best_;
  std::vector<size_t> best_order = order_;
  std::set<std::pair<std::vector<int>, std::vector<int>>> seen;
  for (size_t first = 0; first < groups_.size(); ++first) {
    for (size_t last = 0; last < groups_.size(); ++last) {
      if (first == last ||
          !seen.insert({kind_of(first), kind_of(last)}).second) {
        continue;
      }
      order_ = {first};
      for (size_t g = 0; g < groups_.size(); ++g) {
        if (g != first && g != last) order_.push_back(g);
      }
      order_.push_back(last);
      Outcome outcome = Try(c);
      if (outcome.kind != Outcome::Kind::kSolved) continue;
      const double score = Score(c, outcome.seconds);
      if (score >= (1 - kEqual) * best_score_) continue;
      best_score_ = score;
      best_order = order_;
      outcomes_[c] = std::move(outcome);
    }
  }
  order_ = best_order;
}

absl::Status PlanSearch::RehearseOne(const Candidate& c, Outcome* outcome) {
  const double closed = outcome->seconds;
  auto [kept, is_new] = rehearsed_.try_emplace(c, closed, *outcome->plan);
  if (is_new || kept->second.first != closed) {
    SLUICE_RETURN_IF_ERROR(Rehearse(request_, &*outcome->plan));
    kept->second = {closed, *outcome->plan};
  }
  outcome->plan = kept->second.second;
  outcome->correction = outcome->plan->seconds / closed;
  outcome->seconds = outcome->plan->seconds;
  outcome->latency = outcome->plan->latency_seconds;
  if (outcome->latency > max_latency_) {
    outcome->kind = Outcome::Kind::kTooSlow;
    return absl::OkStatus();
  }
  const double found =
      objective_ == Objective::kLatency ? outcome->latency : outcome->seconds;
  if (found < (1 - kEqual) * best_score_) {
    best_ = c;
    best_score_ = found;
  }
  return absl::OkStatus();
}

// The closed form ranks them well, but not exactly.
absl::Status PlanSearch::RehearseBest() {
  best_.reset();
  best_score_ = kInfinity;
  int rehearsed = 0;
  for (const auto& [score, c] : Solved()) {
    if (rehearsed == rehearsals_) break;
    Outcome& outcome = outcomes_.at(c);
    SLUICE_RETURN_IF_ERROR(RehearseOne(c, &outcome));
    if (outcome.kind == Outcome::Kind::kSolved) ++rehearsed;
  }
  return absl::OkStatus();
}

// The closed form is of a pipeline that is full: it leaves out for how long the
// last stage waits for a job's first rows, and the first one for its last.
// Where that is much of the job, the best with each number of rows in a
// micro-batch are simulated, and then steps in the fine grid, as long as they
// help.
absl::Status PlanSearch::RefineRehearsed() {
  if (outcomes_.at(*best_).correction <= kEmptyFactor) return absl::OkStatus();
  int rehearsed = 0;
  std::set<int32_t> rows;
  for (const auto& [score, c] : Solved()) {
    if (score > kLeeway * best_score_) break;
    Outcome& outcome = outcomes_.at(c);
    if (!rows.insert(c.block.max_step_tokens).second) continue;
    if (outcome.correction > 0) continue;
    SLUICE_RETURN_IF_ERROR(RehearseOne(c, &outcome));
    ++rehearsed;
  }
  const Grid fine = MakeGrid(request_, GridSize::kFine);
  while (outcomes_.at(*best_).correction > kEmptyFactor) {
    const Candidate at = *best_;
    for (const BlockShape& block : NeighboursOf(request_, fine, at.block)) {
      if (rehearsed >= kMoreRehearsals) return absl::OkStatus();
      const Candidate c = {block, at.weights, at.kv};
      Outcome& outcome = outcomes_[c];
      if (outcome.correction > 0) continue;
      outcome = Try(c);
      SLUICE_RETURN_IF_ERROR(status_);
      if (outcome.kind != Outcome::Kind::kSolved ||
          Score(c, outcome.seconds) > kLeeway * best_score_) {
        continue;
      }
      SLUICE_RETURN_IF_ERROR(RehearseOne(c, &outcome));
      ++rehearsed;
    }
    if (!(at < *best_) && !(*best_ < at)) break;
  }
  return absl::OkStatus();
}

absl::Status PlanSearch::TrySlicings() {
  if (!best_) return absl::OkStatus();
  const Candidate c = *best_;
  const Plan plan = *outcomes_.at(c).plan;
  for (const BlockShape& block :
       OtherSlicings(request_, plan, Steps(c.block))) {
    const Candidate other = {block, c.weights, c.kv};
    Outcome& outcome = outcomes_[other];
    if (outcome.correction > 0) continue;
    outcome = Try(other);
    SLUICE_RETURN_IF_ERROR(status_);
    if (outcome.kind != Outcome::Kind::kSolved) continue;
    SLUICE_RETURN_IF_ERROR(RehearseOne(other, &outcome));
  }
  const bool slices = best_->block.steps_in_flight > 0;
  const Plan* rival = nullptr;
  for (const auto& [candidate, outcome] : outcomes_) {
    if (outcome.kind != Outcome::Kind::kSolved || outcome.correction == 0 ||
        (candidate.block.steps_in_flight > 0) == slices) {
      continue;
    }
    if (rival == nullptr || outcome.seconds < rival->seconds) {
      rival = &*outcome.plan;
    }
  }
  if (rival != nullptr) {
    Plan& best = *outcomes_.at(*best_).plan;
    best.slicing = SlicingReason(best, *rival);
  }
  return absl::OkStatus();
}

absl::StatusOr<PlanResult> PlanSearch::Run(Objective objective,
                                           double max_latency) {
  SLUICE_RETURN_IF_ERROR(RunQuick(objective, max_latency).status());
  SLUICE_RETURN_IF_ERROR(RefineRehearsed());
  SLUICE_RETURN_IF_ERROR(TrySlicings());
  if (!best_) return NothingFits();
  PlanResult result = Result();
  result.rejected = Alternatives();
  return result;
}

PlanResult PlanSearch::Result() const {
  PlanResult result;
  result.best = *outcomes_.at(*best_).plan;
  result.candidates = static_cast<int64_t>(outcomes_.size());
  result.programs_solved = programs_;
  return result;
}

absl::StatusOr<PlanResult> PlanSearch::RunQuick(Objective objective,
                                                double max_latency) {
  objective_ = objective;
  max_latency_ = max_latency > 0 ? max_latency : kInfinity;
  outcomes_.clear();
  best_.reset();
  best_score_ = kInfinity;

  // The coarse grid, and the smallest block, in the order of what is possible
  // at best.
  std::vector<std::pair<double, Candidate>> coarse;
  for (const WeightFormat weights : request_.choices.weight_formats) {
    for (const WeightFormat kv : request_.choices.kv_formats) {
      for (const BlockShape& block :
           BlocksOf(request_, MakeGrid(request_, GridSize::kCoarse))) {
        const Candidate c = {block, weights, kv};
        coarse.emplace_back(BoundOf(c), c);
      }
    }
  }
  std::sort(coarse.begin(), coarse.end(), [this](const auto& a, const auto& b) {
    const double bound_a = Score(a.second, a.first);
    const double bound_b = Score(b.second, b.first);
    return bound_a != bound_b ? bound_a < bound_b : a.second < b.second;
  });
  for (const auto& [bound, c] : coarse) Consider(c, bound);

  const Grid fine = MakeGrid(request_, GridSize::kFine);
  for (const Candidate& start : Starts()) Refine(start, fine);
  SLUICE_RETURN_IF_ERROR(status_);
  if (!best_) return NothingFits();
  TryOrders();
  SLUICE_RETURN_IF_ERROR(status_);
  SLUICE_RETURN_IF_ERROR(RehearseBest());
  if (!best_) return NothingFits();
  return Result();
}

absl::Status PlanSearch::NothingFits() {
  double min = kInfinity;
  for (const auto& [c, outcome] : outcomes_) {
    if (outcome.kind == Outcome::Kind::kTooSlow && outcome.plan.has_value()) {
      min = std::min(min, outcome.latency);
    }
  }
  if (std::isfinite(max_latency_)) {
    if (!std::isfinite(min)) {
      // Only bounds were seen: find out what is possible.
      PlanSearch unbounded(request_);
      auto fastest = unbounded.Run(Objective::kLatency, 0);
      if (!fastest.ok()) return fastest.status();
      min = fastest->best.latency_seconds;
    }
    return absl::FailedPreconditionError(absl::StrFormat(
        "no plan answers a request within %g seconds; the least that is "
        "possible is about %.3g seconds",
        max_latency_, min));
  }
  return ShortageError(request_);
}

std::string PlanSearch::WhyNot(const Candidate& c, const Outcome& outcome) {
  switch (outcome.kind) {
    case Outcome::Kind::kTooSlow:
      return absl::StrFormat("a request takes %.3g seconds, more than asked",
                             outcome.latency);
    case Outcome::Kind::kNoBetter:
      return "no split of the layers that fits is faster";
    case Outcome::Kind::kBounded:
      return "could not be faster, even with room for all";
    case Outcome::Kind::kTooLarge: {
      const std::vector<LayerRange> ranges =
          SplitEvenly(request_.model.num_layers, NumStages(request_));
      for (int s = 0; s < static_cast<int>(ranges.size()); ++s) {
        if (Answer(c, s, ranges[s]).fits) continue;
        auto shortage = ShortageOf(Question(c, s, ranges[s]));
        if (!shortage.ok() || shortage->missing_bytes <= 0) break;
        return absl::StrCat(shortage->what, " of ", request_.machines[s].name,
                            " is short by ",
                            BytesText(shortage->missing_bytes));
      }
      return "does not fit";
    }
    case Outcome::Kind::kSolved: {
      const Plan& plan = *outcome.plan;
      const StagePlan& stage = plan.stages[plan.binding_stage];
      return absl::StrFormat(
          "%s takes %.3g of %.3g seconds",
          std::string(ResourceName(plan.binding_resource)),
          stage.busy[static_cast<int>(plan.binding_resource)], plan.seconds);
    }
  }
  return "";
}

// Returns, for each value of each dimension that the best plan does not have,
// the best candidate that has it.
std::vector<Alternative> PlanSearch::Alternatives() {
  std::map<std::pair<int, std::string>,
           std::pair<const Candidate*, const Outcome*>>
      best_of;
  const auto rank = [](const Outcome& o) {
    return std::make_pair(o.kind == Outcome::Kind::kSolved    ? 0
                          : o.kind == Outcome::Kind::kBounded ? 1
                                                              : 2,
                          o.seconds);
  };
  const std::vector<std::string> chosen = NamesOf(*best_);
  for (const auto& [c, outcome] : outcomes_) {
    const std::vector<std::string> own = NamesOf(c);
    for (size_t d = 0; d < own.size(); ++d) {
      if (own[d] == chosen[d]) continue;
      auto& entry = best_of[{static_cast<int>(d), own[d]}];
      if (entry.first == nullptr || rank(outcome) < rank(*entry.second)) {
        entry = {&c, &outcome};
      }
    }
  }
  // Candidates that were not rehearsed are corrected as the best was.
  const Outcome& chosen_one = outcomes_.at(*best_);
  const double fastest = chosen_one.plan->tokens_per_second;
  const auto rate = [&](const Outcome& outcome) {
    const double correction =
        outcome.correction > 0 ? 1 : chosen_one.correction;
    return request_.workload.output_tokens() / (outcome.seconds * correction);
  };
  std::vector<Alternative> alternatives;
  for (const auto& [name, entry] : best_of) {
    const auto& [c, outcome] = entry;
    Alternative alternative = {.description = name.second,
                               .why = WhyNot(*c, *outcome)};
    if (outcome->kind == Outcome::Kind::kSolved ||
        outcome->kind == Outcome::Kind::kBounded) {
      alternative.tokens_per_second = std::min(rate(*outcome), fastest);
    }
    alternatives.push_back(std::move(alternative));
  }
  // The other attention site, where there is a choice.
  const Plan& plan = *chosen_one.plan;
  if (request_.choices.attention_sites.empty()) {
    for (const StagePlan& stage : plan.stages) {
      if (!request_.machines[stage.machine].has_device()) continue;
      PlanRequest other = request_;
      const bool on_host = stage.policy.attention_site == AttentionSite::kHost;
      other.choices.attention_sites = {on_host ? AttentionSite::kDevice
                                               : AttentionSite::kHost};
      PlanSearch search(other);
      search.max_latency_ = max_latency_;
      const Outcome outcome = search.Try(*best_);
      Alternative alternative = {
          .description =
              absl::StrCat("attention-site=", on_host ? "device" : "host"),
          .why = search.WhyNot(*best_, outcome)};
      if (outcome.kind == Outcome::Kind::kSolved) {
        alternative.tokens_per_second = rate(outcome);
      }
      alternatives.push_back(std::move(alternative));
      break;
    }
  }
  return alternatives;
}

// Returns what links of half the bytes would bring to a plan of several stages.
std::optional<Alternative> NarrowLinks(const PlanRequest& request,
                                       const Plan& plan) {
  if (plan.stages.size() < 2 || request.choices.link_dtype != DType::kFloat32) {
    return std::nullopt;
  }
  std::vector<StageChoice> stages;
  for (const StagePlan& stage : plan.stages) {
    stages.push_back({stage.machine, stage.layers, stage.policy});
  }
  PlanRequest narrow = request;
  narrow.choices.link_dtype = DType::kBFloat16;
  const auto wide = EvaluatePlan(request, stages, plan.block.num_blocks);
  const auto half = EvaluatePlan(narrow, stages, plan.block.num_blocks);
  if (!wide.ok() || !half.ok() || wide->tokens_per_second <= 0) {
    return std::nullopt;
  }
  return Alternative{
      .description = "link-dtype=bfloat16",
      .tokens_per_second = plan.tokens_per_second * half->tokens_per_second /
                           wide->tokens_per_second,
      .why = "answers would depend on how the layers are split: only if asked"};
}

}  // namespace

absl::StatusOr<PlanResult> MakePlan(const PlanRequest& request) {
  SLUICE_RETURN_IF_ERROR(request.Check());
  SLUICE_ASSIGN_OR_RETURN(PlanResult result,
                          PlanSearch(request).Run(Objective::kThroughput,
                                                  request.max_latency_seconds));
  if (std::optional<Alternative> narrow = NarrowLinks(request, result.best)) {
    result.rejected.push_back(*std::move(narrow));
  }
  return result;
}

absl::StatusOr<PlanResult> MakeQuickPlan(const PlanRequest& request,
                                         int rehearsals) {
  SLUICE_RETURN_IF_ERROR(request.Check());
  return PlanSearch(request, rehearsals)
      .RunQuick(Objective::kThroughput, request.max_latency_seconds);
}

absl::StatusOr<std::vector<Plan>> Frontier(const PlanRequest& request,
                                           int points) {
  SLUICE_RETURN_IF_ERROR(request.Check());
  if (points < 1) {
    return InvalidArgument("plan: a frontier of ", points, " points");
  }
  PlanSearch search(request);
  SLUICE_ASSIGN_OR_RETURN(
      const PlanResult fastest,
      search.Run(Objective::kThroughput, request.max_latency_seconds));
  if (points == 1) return std::vector<Plan>{fastest.best};
  SLUICE_ASSIGN_OR_RETURN(
      const PlanResult soonest,
      search.Run(Objective::kLatency, request.max_latency_seconds));
  const double min = soonest.best.latency_seconds;
  const double max = fastest.best.latency_seconds;
  std::vector<Plan> plans = {soonest.best};
  for (int i = 1; i + 1 < points; ++i) {
    // Points lie evenly over the logarithm of the latency.
    const double share = static_cast<double>(i) / (points - 1);
    const auto result =
        search.Run(Objective::kThroughput, min * std::pow(max / min, share));
    if (absl::IsFailedPrecondition(result.status())) continue;
    SLUICE_RETURN_IF_ERROR(result.status());
    if (result->best.tokens_per_second > plans.back().tokens_per_second) {
      plans.push_back(result->best);
    }
  }
  if (fastest.best.tokens_per_second > plans.back().tokens_per_second) {
    plans.push_back(fastest.best);
  }
  return plans;
}

}  // namespace sluice
