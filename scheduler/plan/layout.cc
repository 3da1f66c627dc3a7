#include "scheduler/plan/layout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "scheduler/plan/job_shares.h"
#include "scheduler/plan/likeness.h"
#include "scheduler/plan/stage_case.h"

namespace sluice {
namespace {

using Groups = std::vector<std::vector<int>>;

constexpr double kNever = std::numeric_limits<double>::infinity();
// Up to so many unlike machines, all groupings are tried.
constexpr size_t kMaxForAll = 6;
// Of more, the groupings that are changed, and the rounds of changes.
constexpr size_t kStartGroupings = 3;
constexpr int kMaxRounds = 8;
// Groups that are planned for at most, before changes end.
constexpr size_t kMaxGroups = 300;
// Up to so many machines, all numbers of pipelines are tried; of more, one for
// each size of a group.
constexpr int kMaxForAllCounts = 16;
// Layouts that differ less are equals: the one with fewer pipelines is better,
// as each has to be loaded, and holds requests of its own at the end.
constexpr double kSameTime = 0.02;
// Of the best groupings by quick plans, so many are planned for in full.
constexpr size_t kFinalists = 4;
// Of a quick plan's candidates, so many are simulated.
constexpr int kQuickRehearsals = 2;
// Sizes of groups of many alike machines that are tried at first differ by this
// factor; then those beside the best ones.
constexpr double kSizeStep = 1.2;
constexpr size_t kBestSizes = 2;
// A share of the job that fills a plan's blocks fewer times takes not so long
// as a plan for another share has it: its begin and its end are most of it.
constexpr int64_t kFewRounds = 16;
// The times that shares of such jobs are changed.
constexpr int kShareRounds = 4;

// The block shapes of quick plans, where the request leaves them open: enough
// to compare groups.
PolicyChoices QuickChoices(const PolicyChoices& choices) {
  PolicyChoices quick = choices;
  const auto fix = [](std::vector<int32_t> values, std::vector<int32_t>* list) {
    if (list->empty()) *list = std::move(values);
  };
  fix({4, 64}, &quick.gbs);
  fix({1, 4}, &quick.num_microbatches);
  fix({2048}, &quick.max_step_tokens);
  return quick;
}

int64_t SlotsOf(const BlockShape& block) {
  return int64_t{block.gbs} * block.num_microbatches * block.num_blocks;
}

class LayoutSearch {
 public:
  // Machines that differ by less than the factor `alike` are of one kind.
  LayoutSearch(const PlanRequest& request, double alike)
      : request_(request), classes_(request.machines) {
    const int n = static_cast<int>(request.machines.size());
    std::vector<std::vector<double>> figures;
    for (int m = 0; m < n; ++m) {
      figures.push_back(FiguresOf(request.machines[m]));
      similar_.push_back(m);
      for (int other = 0; other < m; ++other) {
        if (similar_[other] == other &&
            AreSimilar(figures[other], figures[m], alike)) {
          similar_[m] = other;
          break;
        }
      }
    }
    std::vector<int> workers_of_host(static_cast<size_t>(n));
    for (int m = 0; m < n; ++m) ++workers_of_host[Host(m)];
    // Machines are of a kind if they are alike and have a host of their own;
    // those that share one are told apart by it.
    for (int m = 0; m < n; ++m) {
      kinds_are_alike_ =
          kinds_are_alike_ &&
          classes_.representative(m) == classes_.representative(similar_[m]);
      kinds_.push_back(workers_of_host[Host(m)] == 1
                           ? similar_[m]
                           : n * static_cast<int>(1 + Host(m)) + similar_[m]);
    }
  }

  absl::StatusOr<LayoutResult> Run(int32_t replicas);
  // What plans a group: shapes enough to compare it, all shapes, or these for
  // its machines themselves instead of the first ones of their kinds.
  enum class Effort { kQuick, kFull, kExact };
  // Plans for each group.
  absl::StatusOr<Layout> Evaluate(const Groups& groups, Effort effort);

 private:
  // The best plan of a group, for about its share of the job.
  struct GroupPlan {
    absl::Status status;
    PlanResult result;
  };
  struct Tried {
    double seconds = kNever;
    Groups groups;  // those that have a plan
    friend bool operator<(const Tried& a, const Tried& b) {
      return std::tie(a.seconds, a.groups) < std::tie(b.seconds, b.groups);
    }
  };

  size_t Host(int machine) const {
    return static_cast<size_t>(classes_.host(machine));
  }
  // The share of the job that a group would have if all machines were alike;
  // rates hardly depend on shares.
  double FairShare(const std::vector<int>& group) const {
    return static_cast<double>(group.size()) /
           static_cast<double>(kinds_.size());
  }
  int64_t RequestsOf(double share) const {
    return std::max<int64_t>(
        1, std::llround(share *
                        static_cast<double>(request_.workload.requests())));
  }
  using PlanKey = std::tuple<Effort, std::vector<int>, int64_t>;
  GroupPlan MakeGroupPlan(const std::vector<int>& group, Effort effort,
                          int64_t requests);
  // The plan of a group for so many requests, whose stages name the group's
  // machines by their index there. It is made once for machines of the same
  // kinds in the same order, which counts where layers are split evenly.
  const GroupPlan& PlanOf(const std::vector<int>& group, Effort effort,
                          int64_t requests);
  // The same for its fair share.
  const GroupPlan& PlanOf(const std::vector<int>& group, Effort effort) {
    return PlanOf(group, effort, RequestsOf(FairShare(group)));
  }
  PlanKey KeyOf(std::vector<int> group, Effort effort, int64_t requests) const;
  // Predicted generated tokens a second; 0 if the model does not fit.
  double RateOf(const std::vector<int>& group);
  // Pipelines with plans for the shares that they have, and shares by the rates
  // of these plans, if some have so few requests that this matters.
  std::vector<PipelinePlan> ByOwnShares(const Groups& groups, Effort effort,
                                        std::vector<PipelinePlan> pipelines);
  // Considers a grouping: groups that the model does not fit are spares.
  // Returns the job's seconds.
  double Try(const Groups& groups, int32_t replicas);
  Groups Usable(const Groups& groups);

  std::vector<int> Counts(int32_t replicas) const;
  void TryAlike(int32_t replicas);
  // Tries groups of so many alike machines. False if the model fits neither
  // these nor smaller ones.
  bool TryCount(size_t count, int32_t replicas);
  void TryMany(int32_t replicas);
  void AddChanges(const Groups& groups, size_t a, size_t b,
                  std::vector<Groups>* changes) const;
  void AddCuts(const Groups& groups, size_t a, std::vector<Groups>* changes);
  // Changes groups that take so many seconds.
  void Improve(Groups groups, double seconds, int32_t replicas);
  static Groups Sorted(Groups groups);
  // Returns the machines, the fastest first.
  std::vector<int> BySpeed();
  bool IsEqualKind() const {
    return std::all_of(kinds_.begin(), kinds_.end(),
                       [&](int kind) { return kind == kinds_[0]; });
  }
  absl::StatusOr<Groups> Choose(int32_t replicas);
  absl::Status TooFew(int32_t replicas);
  std::vector<Alternative> Rejected(const Layout& best);
  static std::string Describe(const Groups& groups);

  const PlanRequest& request_;
  const MachineClasses classes_;
  std::vector<int> similar_;  // the first machine like each
  std::vector<int> kinds_;
  bool kinds_are_alike_ = true;  // not only nearly
  // By the group's kinds; for kExact, by its machines.
  std::map<PlanKey, std::unique_ptr<GroupPlan>> plans_;
  // The best groupings with each number of pipelines, at most kFinalists.
  std::map<size_t, std::set<Tried>> best_;
  absl::Status status_;  // the first error that is no lack of memory
};

LayoutSearch::GroupPlan LayoutSearch::MakeGroupPlan(
    const std::vector<int>& group, Effort effort, int64_t requests) {
  const bool quick = effort == Effort::kQuick;
  PlanRequest request = request_;
  if (quick) request.choices = QuickChoices(request_.choices);
  request.workload = ShareOf(
      request_.workload, static_cast<double>(requests) /
                             static_cast<double>(request_.workload.requests()));
  request.machines.clear();
  for (const int m : group) request.machines.push_back(request_.machines[m]);
  GroupPlan plan;
  absl::StatusOr<PlanResult> made =
      quick ? MakeQuickPlan(request, kQuickRehearsals) : MakePlan(request);
  if (made.ok()) {
    plan.result = *std::move(made);
  } else {
    plan.status = made.status();
    if (!absl::IsResourceExhausted(plan.status) &&
        !absl::IsFailedPrecondition(plan.status)) {
      status_.Update(plan.status);
    }
  }
  return plan;
}

LayoutSearch::PlanKey LayoutSearch::KeyOf(std::vector<int> group, Effort effort,
                                          int64_t requests) const {
  // A full plan is exact where machines of a kind are alike.
  if (effort == Effort::kExact && kinds_are_alike_) effort = Effort::kFull;
  for (int& m : group) {
    const bool alone = kinds_[m] == similar_[m];  // on its host
    if (effort != Effort::kExact) {
      m = kinds_[m];
    } else {
      m = alone ? classes_.representative(m)
                : m + static_cast<int>(kinds_.size());
    }
  }
  return {effort, std::move(group), requests};
}

const LayoutSearch::GroupPlan& LayoutSearch::PlanOf(
    const std::vector<int>& group, Effort effort, int64_t requests) {
  std::unique_ptr<GroupPlan>& kept = plans_[KeyOf(group, effort, requests)];
  if (kept != nullptr) return *kept;
  kept = std::make_unique<GroupPlan>(MakeGroupPlan(group, effort, requests));
  // Other shapes may fit where these do not.
  if (effort == Effort::kQuick && absl::IsResourceExhausted(kept->status)) {
    *kept = PlanOf(group, Effort::kFull, requests);
  }
  return *kept;
}

double LayoutSearch::RateOf(const std::vector<int>& group) {
  const GroupPlan& plan = PlanOf(group, Effort::kQuick);
  return plan.status.ok() ? plan.result.best.tokens_per_second : 0;
}

Groups LayoutSearch::Usable(const Groups& groups) {
  Groups usable;
  for (const std::vector<int>& group : groups) {
    if (RateOf(group) > 0) usable.push_back(group);
  }
  return usable;
}

std::vector<PipelinePlan> LayoutSearch::ByOwnShares(
    const Groups& groups, Effort effort, std::vector<PipelinePlan> pipelines) {
  if (std::none_of(pipelines.begin(), pipelines.end(), [&](const auto& p) {
        return RequestsOf(p.share) < kFewRounds * SlotsOf(p.plan.block);
      })) {
    return pipelines;
  }
  std::vector<double> shares;
  for (const PipelinePlan& pipeline : pipelines) {
    shares.push_back(pipeline.share);
  }
  double least = kNever;
  std::set<std::vector<int64_t>> tried;
  for (int round = 0; round < kShareRounds; ++round) {
    std::vector<int64_t> requests;
    for (const double share : shares) requests.push_back(RequestsOf(share));
    if (!tried.insert(requests).second) break;
    std::vector<PipelinePlan> own;
    for (size_t g = 0; g < groups.size(); ++g) {
      const GroupPlan& plan = PlanOf(groups[g], effort, requests[g]);
      if (!plan.status.ok()) return pipelines;
      own.push_back(
          PipelineOf(request_, groups[g], plan.result.best, shares[g]));
    }
    // Who takes longer gets less.
    double sum = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      shares[g] /= own[g].plan.seconds;
      sum += shares[g];
    }
    for (double& share : shares) share /= sum;
    const double seconds = LayoutSeconds(request_, own);
    if (seconds >= least) continue;
    least = seconds;
    pipelines = std::move(own);
  }
  return pipelines;
}

double LayoutSearch::Try(const Groups& groups, int32_t replicas) {
  if (!status_.ok()) return kNever;
  Groups usable = Usable(groups);
  if (usable.empty() ||
      (replicas > 0 && usable.size() != static_cast<size_t>(replicas))) {
    return kNever;
  }
  std::vector<const Plan*> plans;
  for (const std::vector<int>& group : usable) {
    plans.push_back(&PlanOf(group, Effort::kQuick).result.best);
  }
  std::vector<PipelinePlan> pipelines = ShareByRates(request_, usable, plans);
  if (kinds_.size() <= kMaxForAll) {
    pipelines = ByOwnShares(usable, Effort::kQuick, std::move(pipelines));
  }
  const double seconds = LayoutSeconds(request_, pipelines);
  std::set<Tried>& best = best_[usable.size()];
  best.insert({seconds, std::move(usable)});
  if (best.size() > kFinalists) best.erase(std::prev(best.end()));
  return seconds;
}

// The numbers of pipelines that are tried, ascending.
std::vector<int> LayoutSearch::Counts(int32_t replicas) const {
  const int n = static_cast<int>(kinds_.size());
  if (replicas > 0) return {replicas};
  std::vector<int> counts;
  for (int count = 1; count <= n; ++count) {
    // Groups of more workers than layers have spare ones.
    const bool too_large =
        count < n && n / (count + 1) >= request_.model.num_layers;
    const bool same_size = n / count == (count < n ? n / (count + 1) : 0);
    if (too_large || (n > kMaxForAllCounts && same_size)) continue;
    counts.push_back(count);
  }
  return counts;
}

// Groups of equal size, but for one machine; or so that some are left over,
// where there is no room for the model in the smaller ones.
void LayoutSearch::TryAlike(int32_t replicas) {
  const size_t n = kinds_.size();
  const std::vector<int> counts = Counts(replicas);
  const bool all = counts.size() <= static_cast<size_t>(kMaxForAllCounts);
  std::vector<size_t> tried;
  size_t end = 0;
  double size = kNever;  // of the last ones tried
  for (; end < counts.size(); ++end) {
    const double next = static_cast<double>(n) / counts[end];
    if (!all && kSizeStep * next > size) continue;
    if (!TryCount(static_cast<size_t>(counts[end]), replicas)) break;
    tried.push_back(end);
    size = next;
  }
  if (all) return;
  // Those beside the best.
  const auto seconds = [&](size_t i) {
    const auto it = best_.find(static_cast<size_t>(counts[i]));
    return it == best_.end() ? kNever : it->second.begin()->seconds;
  };
  std::vector<size_t> order(tried.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return seconds(tried[a]) < seconds(tried[b]);
  });
  if (order.size() > kBestSizes) order.resize(kBestSizes);
  for (const size_t best : order) {
    const size_t before = best == 0 ? 0 : tried[best - 1];
    const size_t after = best + 1 < tried.size() ? tried[best + 1] : end;
    for (size_t i = before; i < after; ++i) {
      if (std::count(tried.begin(), tried.end(), i) > 0) continue;
      if (!TryCount(static_cast<size_t>(counts[i]), replicas)) break;
    }
  }
}

bool LayoutSearch::TryCount(size_t count, int32_t replicas) {
  const size_t n = kinds_.size();
  Groups even(count);
  Groups rest(count + 1);
  for (size_t m = 0; m < n; ++m) {
    even[m * count / n].push_back(static_cast<int>(m));
    rest[std::min(m / (n / count), count)].push_back(static_cast<int>(m));
  }
  if (Usable({even.back()}).empty() && Usable({even.front()}).empty()) {
    // Smaller ones hold no more; but they may keep a latency that larger ones
    // do not.
    return request_.max_latency_seconds > 0;
  }
  Try(even, replicas);
  if (rest.back().empty()) return true;
  rest.pop_back();
  Try(rest, replicas);
  return true;
}

std::vector<int> LayoutSearch::BySpeed() {
  std::vector<std::pair<double, int>> speeds;
  for (int m = 0; m < static_cast<int>(kinds_.size()); ++m) {
    const ComputeProfile& compute = request_.machines[m].compute();
    double speed = compute.memory_bytes_per_second;
    for (const ProductRate& product : compute.products) {
      speed = std::max(speed, product.flops_by_rows.Best());
    }
    speeds.emplace_back(-speed, m);
  }
  std::sort(speeds.begin(), speeds.end());
  std::vector<int> order;
  for (const auto& [speed, m] : speeds) order.push_back(m);
  return order;
}

Groups LayoutSearch::Sorted(Groups groups) {
  for (std::vector<int>& group : groups) std::sort(group.begin(), group.end());
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  std::sort(groups.begin(), groups.end());
  return groups;
}

// Appends the groups after each move of a machine from group `a` to `b`, and
// each exchange of two; of machines of a kind, only once.
void LayoutSearch::AddChanges(const Groups& groups, size_t a, size_t b,
                              std::vector<Groups>* changes) const {
  std::set<std::pair<int, int>> seen;
  for (size_t i = 0; i < groups[a].size(); ++i) {
    const int moved = kinds_[groups[a][i]];
    if (groups[a].size() > 1 && seen.insert({moved, -1}).second) {
      Groups& changed = changes->emplace_back(groups);
      changed[b].push_back(changed[a][i]);
      changed[a].erase(changed[a].begin() + static_cast<int64_t>(i));
    }
    for (size_t j = 0; a < b && j < groups[b].size(); ++j) {
      const int other = kinds_[groups[b][j]];
      if (moved == other || !seen.insert({moved, other}).second) continue;
      Groups& changed = changes->emplace_back(groups);
      std::swap(changed[a][i], changed[b][j]);
    }
  }
}

// Appends the groups with group `a` cut in two, the faster machines and the
// slower ones: in the middle, and between kinds.
void LayoutSearch::AddCuts(const Groups& groups, size_t a,
                           std::vector<Groups>* changes) {
  std::vector<int> group;
  for (const int m : BySpeed()) {
    if (std::count(groups[a].begin(), groups[a].end(), m) > 0) {
      group.push_back(m);
    }
  }
  for (size_t cut = 1; cut < group.size(); ++cut) {
    if (cut != group.size() / 2 &&
        kinds_[group[cut]] == kinds_[group[cut - 1]]) {
      continue;
    }
    const auto at = group.begin() + static_cast<int64_t>(cut);
    Groups& changed = changes->emplace_back(groups);
    changed[a].assign(group.begin(), at);
    changed.emplace_back(at, group.end());
  }
}

void LayoutSearch::Improve(Groups groups, double seconds, int32_t replicas) {
  for (int round = 0; round < kMaxRounds; ++round) {
    std::vector<Groups> changes;
    for (size_t a = 0; a < groups.size(); ++a) {
      for (size_t b = 0; b < groups.size(); ++b) {
        if (a != b) AddChanges(groups, a, b, &changes);
      }
      if (replicas == 0) AddCuts(groups, a, &changes);
    }
    const Groups* better = nullptr;
    for (const Groups& changed : changes) {
      if (plans_.size() >= kMaxGroups) break;
      const double found = Try(Sorted(changed), replicas);
      if (found >= (1 - kSameTime) * seconds) continue;
      seconds = found;
      better = &changed;
    }
    if (better == nullptr) return;
    groups = *better;
  }
}

void LayoutSearch::TryMany(int32_t replicas) {
  const std::vector<int> order = BySpeed();
  const size_t n = order.size();
  std::vector<std::pair<double, Groups>> starts;
  for (const int number : Counts(replicas)) {
    const auto count = static_cast<size_t>(number);
    Groups like(count);
    Groups even(count);
    for (size_t i = 0; i < n; ++i) {
      like[i * count / n].push_back(order[i]);
      const size_t round = i / count;
      const size_t at = i % count;
      even[round % 2 == 0 ? at : count - 1 - at].push_back(order[i]);
    }
    starts.emplace_back(Try(Sorted(like), replicas), like);
    if (count == 1 || count == n) continue;
    starts.emplace_back(Try(Sorted(even), replicas), even);
  }
  std::stable_sort(
      starts.begin(), starts.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  if (starts.size() > kStartGroupings) starts.resize(kStartGroupings);
  for (const auto& [seconds, groups] : starts) {
    Improve(groups, seconds, replicas);
  }
}

absl::StatusOr<Layout> LayoutSearch::Evaluate(const Groups& groups,
                                              Effort effort) {
  std::vector<const Plan*> plans;
  std::set<int> used;
  for (const std::vector<int>& group : groups) {
    const GroupPlan& plan = PlanOf(group, effort);
    SLUICE_RETURN_IF_ERROR(plan.status);
    plans.push_back(&plan.result.best);
    used.insert(group.begin(), group.end());
  }
  Layout layout;
  layout.pipelines =
      ByOwnShares(groups, effort, ShareByRates(request_, groups, plans));
  for (int m = 0; m < static_cast<int>(kinds_.size()); ++m) {
    if (!used.contains(m)) layout.spares.push_back(m);
  }
  layout.seconds = LayoutSeconds(request_, layout.pipelines);
  layout.tokens_per_second = request_.workload.output_tokens() / layout.seconds;
  return layout;
}

absl::Status LayoutSearch::TooFew(int32_t replicas) {
  // Why the model does not fit one group of all, or the smaller ones.
  std::vector<int> all(kinds_.size());
  std::iota(all.begin(), all.end(), 0);
  const GroupPlan& together = PlanOf(all, Effort::kQuick);
  if (replicas <= 1) return together.status;
  size_t most = 0;
  const std::vector<int> order = BySpeed();
  absl::Status why = together.status;
  for (size_t count = 1; count <= order.size(); ++count) {
    Groups groups(count);
    for (size_t i = 0; i < order.size(); ++i) {
      groups[i % count].push_back(order[i]);
    }
    const size_t fits = Usable(groups).size();
    most = std::max(most, fits);
    if (fits < count) {
      for (const std::vector<int>& group : groups) {
        const GroupPlan& plan = PlanOf(group, Effort::kQuick);
        if (!plan.status.ok()) why = plan.status;
      }
      break;
    }
  }
  // There may be room, but not for what else is wanted.
  if (most == 0) return why;
  return ResourceExhausted(
      "each of ", replicas,
      " replicas needs room for the whole model among its workers, but there "
      "is room for about ",
      most, " among these ", kinds_.size(), ": ", why.message());
}

std::string LayoutSearch::Describe(const Groups& groups) {
  std::map<size_t, int> sizes;
  for (const std::vector<int>& group : groups) ++sizes[group.size()];
  std::string text = absl::StrCat("replicas=", groups.size(), " (");
  bool first = true;
  for (auto it = sizes.rbegin(); it != sizes.rend(); ++it) {
    absl::StrAppend(&text, first ? "" : ", ", it->second, " of ", it->first,
                    it->first == 1 ? " worker" : " workers");
    first = false;
  }
  return text + ")";
}

std::vector<Alternative> LayoutSearch::Rejected(const Layout& best) {
  Groups chosen;
  for (const PipelinePlan& pipeline : best.pipelines) {
    chosen.push_back(pipeline.machines);
  }
  // What quick plans are wrong for the chosen groups, they are for others, too.
  double correction = 1;
  for (const Tried& tried : best_[chosen.size()]) {
    if (Sorted(tried.groups) == chosen) {
      correction = best.seconds / tried.seconds;
    }
  }
  std::vector<Alternative> rejected;
  std::set<std::string> seen = {Describe(chosen)};
  for (const auto& [count, of_count] : best_) {
    for (const Tried& tried : of_count) {
      if (!seen.insert(Describe(tried.groups)).second) continue;
      const bool planned = std::all_of(
          tried.groups.begin(), tried.groups.end(), [&](const auto& group) {
            return plans_.contains(
                KeyOf(group, Effort::kFull, RequestsOf(FairShare(group))));
          });
      double seconds = correction * tried.seconds;
      if (planned) {
        const auto layout = Evaluate(tried.groups, Effort::kFull);
        if (layout.ok()) seconds = layout->seconds;
      }
      rejected.push_back(
          {.description = Describe(tried.groups),
           .tokens_per_second = request_.workload.output_tokens() / seconds,
           .why =
               seconds < best.seconds
                   ? absl::StrFormat(
                         "takes about %.4g s, %.2g %% less than the best: not "
                         "worth loading the model so often",
                         seconds, 100 * (1 - seconds / best.seconds))
                   : absl::StrFormat("takes about %.4g s, the best %.4g s",
                                     seconds, best.seconds)});
      break;
    }
  }
  // Why there are not more pipelines.
  for (size_t count = best_.rbegin()->first + 1; count <= kinds_.size();
       ++count) {
    std::vector<int> smallest(kinds_.size() / count);
    std::iota(smallest.begin(), smallest.end(), 0);
    const GroupPlan& plan = PlanOf(smallest, Effort::kQuick);
    if (plan.status.ok()) continue;
    rejected.push_back({.description = absl::StrCat("replicas=", count),
                        .why = std::string(plan.status.message())});
    break;  // more are smaller still
  }
  return rejected;
}

// The best of those tried, by full plans.
absl::StatusOr<Groups> LayoutSearch::Choose(int32_t replicas) {
  std::set<Tried> tried;
  for (const auto& [count, of_count] : best_) {
    tried.insert(of_count.begin(), of_count.end());
  }
  if (tried.empty()) return TooFew(replicas);
  // Fewer pipelines are better if they take hardly more.
  constexpr double kNear = 1 / (1 - 2 * kSameTime);
  std::set<Tried> finalists;
  const bool many = kinds_.size() > static_cast<size_t>(kMaxForAllCounts);
  for (const auto& [count, of_count] : best_) {
    const Tried& of_this = *of_count.begin();
    if (of_this.seconds <= kNear * tried.begin()->seconds) {
      finalists.insert(of_this);
      if (many) break;  // one beside the best is enough
    }
  }
  for (auto it = tried.begin();
       it != tried.end() &&
       finalists.size() < (many ? kFinalists / 2 : 2 * kFinalists);
       ++it) {
    finalists.insert(*it);
  }
  Tried best;
  absl::Status why;
  for (const Tried& candidate : finalists) {
    const absl::StatusOr<Layout> layout =
        Evaluate(candidate.groups, Effort::kFull);
    if (!layout.ok()) {
      why = layout.status();
      continue;
    }
    const size_t count = candidate.groups.size();
    const size_t before = best.groups.size();
    const double factor = count < before   ? 1 / (1 - kSameTime)
                          : count > before ? 1 - kSameTime
                                           : 1;
    if (before == 0 || layout->seconds < factor * best.seconds) {
      best = {layout->seconds, candidate.groups};
    }
  }
  if (best.groups.empty()) return why;
  std::sort(best.groups.begin(), best.groups.end());
  return best.groups;
}

absl::StatusOr<LayoutResult> LayoutSearch::Run(int32_t replicas) {
  const size_t n = kinds_.size();
  if (replicas == 1) {
    std::vector<int> all(n);
    std::iota(all.begin(), all.end(), 0);
    Try({all}, replicas);
  } else if (IsEqualKind()) {
    TryAlike(replicas);
  } else if (n <= kMaxForAll) {
    ForEachGrouping(kinds_,
                    [&](const Groups& groups) { Try(groups, replicas); });
  } else {
    TryMany(replicas);
  }
  SLUICE_RETURN_IF_ERROR(status_);
  SLUICE_ASSIGN_OR_RETURN(const Groups best, Choose(replicas));
  LayoutResult result;
  SLUICE_ASSIGN_OR_RETURN(result.best, Evaluate(best, Effort::kExact));
  if (result.best.pipelines.size() == 1) {
    result.rejected_plans =
        PlanOf(best.front(), Effort::kExact, RequestsOf(1)).result.rejected;
  }
  result.rejected = Rejected(result.best);
  result.groups = static_cast<int64_t>(plans_.size());
  return result;
}

}  // namespace

namespace {

// The layout for the only formats of the request.
absl::StatusOr<LayoutResult> MakeOfOneFormat(const PlanRequest& request,
                                             int32_t replicas) {
  absl::StatusOr<LayoutResult> made =
      LayoutSearch(request, kAlikeFactor).Run(replicas);
  // One that is nearly like another may have just too little memory.
  return absl::IsResourceExhausted(made.status()) ||
                 absl::IsFailedPrecondition(made.status())
             ? LayoutSearch(request, 1).Run(replicas)
             : std::move(made);
}

}  // namespace

absl::StatusOr<LayoutResult> MakeLayout(const PlanRequest& request,
                                        int32_t replicas) {
  SLUICE_RETURN_IF_ERROR(request.Check());
  if (replicas < 0 || static_cast<size_t>(replicas) > request.machines.size()) {
    return InvalidArgument("plan: ", replicas, " replicas, but only ",
                           request.machines.size(), " workers");
  }
  const PolicyChoices& choices = request.choices;
  if (choices.weight_formats.size() * choices.kv_formats.size() == 1) {
    return MakeOfOneFormat(request, replicas);
  }
  // All pipelines have the same formats, as answers depend on them.
  absl::StatusOr<LayoutResult> best = absl::UnknownError("no format");
  for (const WeightFormat weights : choices.weight_formats) {
    for (const WeightFormat kv : choices.kv_formats) {
      PlanRequest one = request;
      one.choices.weight_formats = {weights};
      one.choices.kv_formats = {kv};
      absl::StatusOr<LayoutResult> made = MakeOfOneFormat(one, replicas);
      if (!best.ok() ||
          (made.ok() && made->best.seconds < best->best.seconds)) {
        best = std::move(made);
      }
    }
  }
  return best;
}

absl::StatusOr<Layout> EvaluateLayout(
    const PlanRequest& request, const std::vector<std::vector<int>>& groups) {
  SLUICE_RETURN_IF_ERROR(request.Check());
  std::set<int> used;
  for (const std::vector<int>& group : groups) {
    for (const int m : group) {
      if (m < 0 || m >= static_cast<int>(request.machines.size()) ||
          !used.insert(m).second) {
        return InvalidArgument("plan: machine ", m,
                               " is in no group, or in several");
      }
    }
    if (group.empty()) return InvalidArgument("plan: a group without machines");
  }
  if (groups.empty()) return InvalidArgument("plan: there are no groups");
  return LayoutSearch(request, 1)
      .Evaluate(groups, LayoutSearch::Effort::kExact);
}

}  // namespace sluice
