#include "scheduler/plan/policy_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "common/status_macros.h"
#include "scheduler/plan/linear_program.h"
#include "scheduler/plan/stage_case.h"

namespace sluice {
namespace {

constexpr double kInfinity = LinearProgram::kInfinity;
constexpr int kNumKinds = 3;  // weights, KV cache, activations
constexpr int kTiers = kNumTiers;
// Fractions come in such steps.
constexpr double kGrain = 1e-4;
constexpr double kMinOnDisk = 10 * kGrain;
// The small costs in the objective, which is about 1: for all seconds of all
// resources together, and for what lies one tier further away.
constexpr double kCostOfUse = 1e-3;
constexpr double kCostOfTier = 2e-6;
// Answers that differ less are equals.
constexpr double kEqual = 1e-6;
// The max solves of a case's program: the fit is known at points looked at.
constexpr int kMaxLooks = 6;

// The fractions that may be above 0: which tiers may hold what.
using TierMask = std::array<bool, kNumFractions>;

int Index(int kind, int tier) { return kTiers * kind + tier; }

int TiersOf(const TierMask& mask, int kind) {
  int tiers = 0;
  for (int tier = 0; tier < kTiers; ++tier) {
    tiers += mask[Index(kind, tier)];
  }
  return tiers;
}

double MinOf(const LinearForm& form, const TierMask& mask) {
  double value = form.constant;
  for (int kind = 0; kind < kNumKinds; ++kind) {
    double min = kInfinity;
    for (int tier = 0; tier < kTiers; ++tier) {
      const int i = Index(kind, tier);
      if (mask[i]) min = std::min(min, form.slope[i]);
    }
    value += min;
  }
  return value;
}

double MaxOf(const LinearForm& form, const TierMask& mask) {
  LinearForm negative;
  negative.Add(form, -1);
  return -MinOf(negative, mask);
}

// Returns patterns from "nothing is far away" to "anything may be anywhere".
std::vector<TierMask> Patterns(const MachineProfile& machine) {
  // Tiers come nearest first. Without a device the host is the nearest.
  const int nearest = machine.has_device() ? 0 : 1;
  const bool disk = machine.disk_bytes > 0;
  // The furthest tier of weights, KV cache and activations.
  std::vector<std::array<int, kNumKinds>> furthest;
  if (machine.has_device()) {
    furthest = {{0, 0, 0}, {0, 1, 1}, {1, 0, 1}, {1, 1, 1}};
  } else {
    furthest = {{1, 1, 1}};
  }
  if (disk) {
    furthest.push_back({2, 1, 1});
    furthest.push_back({1, 2, 1});
    furthest.push_back({2, 2, 1});
    furthest.push_back({2, 2, 2});
  }
  std::vector<TierMask> patterns;
  for (const std::array<int, kNumKinds>& far : furthest) {
    TierMask mask = {};
    for (int kind = 0; kind < kNumKinds; ++kind) {
      for (int tier = nearest; tier <= far[kind]; ++tier) {
        mask[Index(kind, tier)] = true;
      }
    }
    patterns.push_back(mask);
    // With no weights but on disk a slot is a whole layer, and no more.
    if (far[0] == 2 && far[1] == far[2]) {
      for (int tier = nearest; tier < 2; ++tier) mask[Index(0, tier)] = false;
      patterns.push_back(mask);
    }
  }
  return patterns;
}

std::vector<AttentionSite> Sites(const StageQuestion& q) {
  const PlanRequest& request = *q.request;
  if (!request.choices.attention_sites.empty()) {
    return request.choices.attention_sites;
  }
  if (!request.machines[q.machine].has_device()) return {AttentionSite::kHost};
  return {AttentionSite::kHost, AttentionSite::kDevice};
}

// LM-Offload's parallelism control (section 4), as far as the cost model knows
// it: fewer threads than all where they give more.
std::vector<int32_t> Threads(const StageQuestion& q) {
  const PlanRequest& request = *q.request;
  if (!request.choices.threads.empty()) return request.choices.threads;
  const MachineProfile& machine = request.machines[q.machine];
  const RateCurve& shares = machine.host.share_by_threads;
  std::vector<int32_t> threads = {0};
  if (shares.empty()) return threads;
  double best = 1.01 * shares.At(machine.rank_threads());
  int32_t fastest = 0;
  for (const RateCurve::Point& point : shares.points()) {
    if (point.x < machine.rank_threads() && point.rate > best) {
      best = point.rate;
      fastest = machine.ranks * static_cast<int32_t>(point.x);
    }
  }
  if (fastest > 0) threads.push_back(fastest);
  return threads;
}

// One choice outside the linear program.
struct Case {
  TierMask mask;
  StageCase stage;
  std::vector<ResourceForms> costs;  // of each kind of step
  // The capacities that must hold, as known at the points that were looked at.
  std::vector<CapacityRow> capacities;
};

Policy PolicyOf(const StageQuestion& q, AttentionSite site, int32_t threads) {
  Policy policy;
  policy.attention_site = site;
  policy.compute_threads = threads;
  policy.compress_weights = q.weights;
  policy.compress_kv = q.kv;
  policy.automatic_weights = false;
  policy.automatic_kv_cache = false;
  policy.automatic_activations = false;
  return policy;
}

// Cases of one policy, which share what is asked about its sizes.
class CaseMaker {
 public:
  CaseMaker(const StageQuestion& q, const Policy& policy)
      : q_(q), policy_(policy) {}

  Case Make(const TierMask& mask) {
    const PlanRequest& request = *q_.request;
    Policy policy = policy_;
    // Named shares would reserve the longest request's for each sequence.
    policy.automatic_kv_cache = !mask[Index(kKv, kOnDisk)] &&
                                !request.machines[q_.machine].has_device();
    Case c = {.mask = mask,
              .stage = MakeStageCase(request, q_.machine, q_.layers, policy,
                                     q_.block)};
    c.stage.may_use = mask;
    auto& ranks = ranks_[policy.automatic_kv_cache][c.stage.MayUseDisk()];
    if (ranks == nullptr) ranks = c.stage.Ranks();
    c.stage.ranks = ranks;
    c.costs.reserve(q_.steps.size());
    for (const StepShape& step : q_.steps) {
      c.costs.push_back(StepCost(c.stage, step));
    }
    return c;
  }

 private:
  const StageQuestion& q_;
  const Policy policy_;
  std::shared_ptr<const StageRanks> ranks_[2][2];
};

// Looks at what the stage takes with these fractions. True if it fits.
bool LookAt(const Fractions& at, Case* c) {
  const RanksPlacement placement = PlacementOf(c->stage, at);
  for (const CapacityRow& row : CapacityRows(c->stage, at, placement)) {
    c->capacities.push_back(row);
  }
  return placement.Fits(LimitsOf(c->stage));
}

// Gives all tiers that may hold something the same share.
Fractions Evenly(const TierMask& mask) {
  Fractions fractions = {};
  for (int i = 0; i < kNumFractions; ++i) {
    if (mask[i]) fractions[i] = 1.0 / TiersOf(mask, i / kTiers);
  }
  return fractions;
}

// The least seconds of one step, each resource for itself.
double StepBound(const Case& c, const ResourceForms& forms) {
  double longest = 0;
  double sum = 0;
  for (const LinearForm& form : forms) {
    const double min = std::max(0.0, MinOf(form, c.mask));
    longest = std::max(longest, min);
    sum += min;
  }
  return c.stage.options.overlap == Overlap::kNone ? sum : longest;
}

double CaseBound(const Case& c, absl::Span<const StepShape> steps) {
  double bound = 0;
  for (size_t k = 0; k < steps.size(); ++k) {
    bound += steps[k].count * StepBound(c, c.costs[k]);
  }
  return bound;
}

// The bytes that must stay free for fractions that are rounded afterwards: each
// kind that has a choice of tiers may put one grain more here.
double RoundingBytes(const LinearForm& bytes, const TierMask& mask) {
  double rounding = 0;
  for (int kind = 0; kind < kNumKinds; ++kind) {
    if (TiersOf(mask, kind) < 2) continue;
    double max = 0;
    for (int tier = 0; tier < kTiers; ++tier) {
      const int i = Index(kind, tier);
      if (mask[i]) max = std::max(max, std::abs(bytes.slope[i]));
    }
    rounding += 2 * kGrain * max;
  }
  return rounding;
}

// The nine fractions as variables that add up. Weights that may be on disk are,
// a little: with the first of them the embedding goes there, which the
// capacities count on.
LinearProgram FractionsProgram(const TierMask& mask) {
  LinearProgram program;
  for (int i = 0; i < kNumFractions; ++i) {
    const double min = i == Index(0, 2) && mask[i] ? kMinOnDisk : 0;
    program.AddVariable(0, min, mask[i] ? 1 : 0);
  }
  for (int kind = 0; kind < kNumKinds; ++kind) {
    LinearProgram::Row& row = program.AddRow(1, 1);
    for (int tier = 0; tier < kTiers; ++tier) row.a[Index(kind, tier)] = 1;
  }
  return program;
}

// Adds bytes <= limit, in units of the limit; returns the row.
LinearProgram::Row& AddCapacity(const CapacityRow& capacity,
                                const TierMask& mask, LinearProgram* program) {
  const double unit = std::max(capacity.limit, 1.0);
  LinearProgram::Row& row =
      program->AddRow(-kInfinity, (capacity.limit - capacity.bytes.constant -
                                   RoundingBytes(capacity.bytes, mask)) /
                                      unit);
  for (int i = 0; i < kNumFractions; ++i) {
    row.a[i] = capacity.bytes.slope[i] / unit;
  }
  return row;
}

LinearProgram TimeProgram(const Case& c, absl::Span<const StepShape> steps,
                          double scale) {
  LinearProgram program = FractionsProgram(c.mask);
  for (int i = 0; i < kNumFractions; ++i) {
    program.cost[i] = kCostOfTier * (i % kTiers);
  }
  const bool adds = c.stage.options.overlap == Overlap::kNone;
  for (size_t k = 0; k < steps.size(); ++k) {
    const double weight = steps[k].count / scale;
    for (const LinearForm& form : c.costs[k]) {
      for (int i = 0; i < kNumFractions; ++i) {
        program.cost[i] += (adds ? 1 : kCostOfUse) * weight * form.slope[i];
      }
    }
    if (adds) continue;
    // The unit is the max seconds of the longest resource.
    double unit = 0;
    double min = 0;
    for (const LinearForm& form : c.costs[k]) {
      unit = std::max(unit, MaxOf(form, c.mask));
      min = std::max(min, MinOf(form, c.mask));
    }
    if (unit <= 0) continue;
    const int t = program.AddVariable(weight * unit, min / unit, kInfinity);
    for (const LinearForm& form : c.costs[k]) {
      if (MaxOf(form, c.mask) <= min) continue;  // another is never shorter
      LinearProgram::Row& row = program.AddRow(form.constant / unit, kInfinity);
      for (int i = 0; i < kNumFractions; ++i) {
        row.a[i] = -form.slope[i] / unit;
      }
      row.a[t] = 1;
    }
  }
  for (const CapacityRow& capacity : c.capacities) {
    AddCapacity(capacity, c.mask, &program);
  }
  return program;
}

// Returns whole grains; those left over by rounding go to the furthest tier
// used, where they cost time but take no place that is scarce. So does KV of
// less than a sequence, which would take a whole one's pages.
Fractions Rounded(const std::vector<double>& x, const Case& c) {
  const StageSizes& sizes = c.stage.ranks->lead();
  const double sequence = static_cast<double>(sizes.sequence_pages) /
                          static_cast<double>(sizes.kv_pages);
  Fractions fractions = {};
  for (int kind = 0; kind < kNumKinds; ++kind) {
    int64_t left = std::llround(1 / kGrain);
    int furthest = -1;
    for (int tier = 0; tier < kTiers; ++tier) {
      const int i = Index(kind, tier);
      if (c.mask[i] && (furthest < 0 || x[i] > kGrain / 10)) furthest = i;
    }
    for (int tier = 0; tier < kTiers; ++tier) {
      const int i = Index(kind, tier);
      if (!c.mask[i]) continue;
      // Whole numbers in disguise stay what they are.
      auto grains = std::clamp<int64_t>(
          static_cast<int64_t>(std::floor(x[i] / kGrain + 1e-3)), 0, left);
      if (kind == kKv && i != furthest && x[i] < sequence) grains = 0;
      fractions[i] = static_cast<double>(grains) * kGrain;
      left -= grains;
    }
    if (furthest >= 0) {
      fractions[furthest] = (std::round(fractions[furthest] / kGrain) +
                             static_cast<double>(left)) *
                            kGrain;
    }
  }
  return fractions;
}

// The lack if it is spread so that it is least, in shares of the limits.
struct Missing {
  double sum = kInfinity;
  Tier scarcest = Tier::kHost;
  double limit = 0;  // of that
  double bytes = 0;
};

// Returns the lack of all capacities, or of `only` with the others as they are.
// Rows of one tier are one capacity.
absl::StatusOr<Missing> MinMissing(Case c, std::optional<Tier> only) {
  LookAt(Evenly(c.mask), &c);
  Missing missing;
  for (int look = 0; look < kMaxLooks; ++look) {
    LinearProgram program = FractionsProgram(c.mask);
    std::map<Tier, int> slack;
    for (const CapacityRow& row : c.capacities) {
      if ((!only || only == row.tier) && !slack.contains(row.tier)) {
        slack[row.tier] = program.AddVariable(1, 0, kInfinity);
      }
    }
    for (const CapacityRow& capacity : c.capacities) {
      LinearProgram::Row& row = AddCapacity(capacity, c.mask, &program);
      const auto it = slack.find(capacity.tier);
      if (it != slack.end()) row.a[it->second] = -1;
    }
    SLUICE_ASSIGN_OR_RETURN(const LinearSolution solution, Solve(program));
    if (solution.status != LinearSolution::Status::kOptimal) return Missing();
    missing = {.sum = solution.objective};
    double max = -1;
    TierLimits limits = LimitsOf(c.stage);
    for (const CapacityRow& row : c.capacities) {
      const auto it = slack.find(row.tier);
      if (it == slack.end() || solution.x[it->second] <= max) continue;
      max = solution.x[it->second];
      missing.scarcest = row.tier;
      missing.limit = row.limit;
      missing.bytes = max * std::max(row.limit, 1.0);
    }
    for (const auto& [tier, variable] : slack) {
      auto& limit = limits[static_cast<size_t>(tier)];
      limit += static_cast<uint64_t>(solution.x[variable] *
                                     std::max<double>(limit, 1));
    }
    // The search ends if these limits would do.
    const Fractions fractions = Rounded(solution.x, c);
    const RanksPlacement placement = PlacementOf(c.stage, fractions);
    if (placement.Fits(limits)) break;
    for (const CapacityRow& row : CapacityRows(c.stage, fractions, placement)) {
      c.capacities.push_back(row);
    }
  }
  return missing;
}

// Whether the capacities can hold, each for itself.
bool MayFit(const Case& c) {
  return std::all_of(
      c.capacities.begin(), c.capacities.end(), [&c](const CapacityRow& row) {
        return MinOf(row.bytes, c.mask) + RoundingBytes(row.bytes, c.mask) <=
               row.limit;
      });
}

// Takes the case's answer if it is better than what there is. What the tiers
// hold is linear where it was looked at only: the program is solved again with
// what its answer takes, until that fits.
absl::Status TryCase(Case c, absl::Span<const StepShape> steps,
                     int64_t* programs, StageAnswer* best) {
  const double bound = CaseBound(c, steps);
  if (best->fits && bound >= (1 - kEqual) * best->seconds) {
    return absl::OkStatus();
  }
  LookAt(Evenly(c.mask), &c);
  if (!MayFit(c)) return absl::OkStatus();
  for (int look = 0; look < kMaxLooks; ++look) {
    ++*programs;
    SLUICE_ASSIGN_OR_RETURN(
        const LinearSolution solution,
        Solve(TimeProgram(c, steps, bound > 0 ? bound : 1)));
    if (solution.status != LinearSolution::Status::kOptimal) break;
    const Fractions fractions = Rounded(solution.x, c);
    StageAnswer answer = {.fits = true, .policy = c.stage.policy};
    for (const StepShape& step : steps) {
      answer.step_seconds.push_back(StepSeconds(c.stage, step, fractions));
      answer.seconds += step.count * answer.step_seconds.back();
    }
    if (best->fits && answer.seconds >= (1 - kEqual) * best->seconds) break;
    if (!LookAt(fractions, &c)) continue;
    const bool automatic_kv = answer.policy.automatic_kv_cache;
    SetFractions(fractions, &answer.policy);
    answer.policy.automatic_kv_cache = automatic_kv;
    *best = std::move(answer);
    break;
  }
  return absl::OkStatus();
}

std::vector<CaseMaker> MakersOf(const StageQuestion& q) {
  std::vector<CaseMaker> makers;
  for (const AttentionSite site : Sites(q)) {
    for (const int32_t threads : Threads(q)) {
      makers.emplace_back(q, PolicyOf(q, site, threads));
    }
  }
  return makers;
}

// Returns all cases of a question.
std::vector<Case> CasesOf(const StageQuestion& q) {
  std::vector<Case> cases;
  for (CaseMaker& maker : MakersOf(q)) {
    for (const TierMask& mask : Patterns(q.request->machines[q.machine])) {
      cases.push_back(maker.Make(mask));
    }
  }
  return cases;
}

}  // namespace

absl::StatusOr<StageAnswer> SolveStage(const StageQuestion& question,
                                       int64_t* programs) {
  const MachineProfile& machine = question.request->machines[question.machine];
  const std::vector<TierMask> patterns = Patterns(machine);
  std::vector<CaseMaker> makers = MakersOf(question);
  StageAnswer best;
  for (const TierMask& mask : patterns) {
    for (CaseMaker& maker : makers) {
      SLUICE_RETURN_IF_ERROR(
          TryCase(maker.Make(mask), question.steps, programs, &best));
    }
    // A stage that fits is never offloaded, not even to spread the work.
    if (best.fits && &mask == &patterns.front()) return best;
  }
  return best;
}

absl::StatusOr<StageShortage> ShortageOf(const StageQuestion& question) {
  StageShortage shortage;
  double min = kInfinity;
  for (Case& c : CasesOf(question)) {
    SLUICE_ASSIGN_OR_RETURN(const Missing missing,
                            MinMissing(std::move(c), std::nullopt));
    if (missing.sum >= min) continue;
    min = missing.sum;
    shortage = {std::string(CapacityName(missing.scarcest)), missing.bytes,
                missing.limit};
  }
  return shortage;
}

double StageBound(const StageQuestion& question) {
  double min = kInfinity;
  for (const Case& c : CasesOf(question)) {
    min = std::min(min, CaseBound(c, question.steps));
  }
  return min;
}

absl::StatusOr<std::vector<CapacityRemedy>> RemediesOf(
    const StageQuestion& question) {
  const MachineProfile& machine = question.request->machines[question.machine];
  std::vector<CapacityRemedy> remedies;
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (tier == Tier::kDevice && !machine.has_device()) continue;
    double min = kInfinity;
    for (Case& c : CasesOf(question)) {
      SLUICE_ASSIGN_OR_RETURN(const Missing missing,
                              MinMissing(std::move(c), tier));
      if (std::isfinite(missing.sum)) min = std::min(min, missing.bytes);
    }
    if (std::isfinite(min)) {
      remedies.push_back({std::string(CapacityName(tier)), min});
    }
  }
  return remedies;
}

}  // namespace sluice
