#include "scheduler/plan/layout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
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
// Measured machines never have quite the same figures. Those that differ by
// less than this factor count as alike when groups are compared; what is chosen
// is planned for with their own.
constexpr double kAlike = 1.1;
// Layouts that differ less are equals: the one with fewer pipelines is better,
// as each has to be loaded, and holds requests of its own at the end.
constexpr double kSameTime = 0.02;
// Shares of a job are planned for in steps of this factor: rates hardly depend
// on them, and a group is planned for once a step.
constexpr double kShareStep = 1.25;

// The figures that make machines alike or not.
std::vector<double> FiguresOf(const MachineProfile& m) {
  std::vector<double> figures = {static_cast<double>(m.device_memory_bytes),
                                 static_cast<double>(m.host_memory_bytes),
                                 static_cast<double>(m.disk_bytes),
                                 m.host_to_device_bytes_per_second,
                                 m.disk.read_bytes_per_second};
  for (const ComputeProfile* compute : {&m.host, &m.device_compute}) {
    figures.push_back(compute->memory_bytes_per_second);
    for (const ProductRate& product : compute->products) {
      figures.push_back(product.flops_by_rows.Best());
    }
    for (const AttentionRate& attention : compute->attention) {
      figures.push_back(attention.decode_bytes_by_context.Best());
    }
  }
  return figures;
}

bool AreSimilar(const std::vector<double>& a, const std::vector<double>& b,
                double factor) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](double x, double y) {
                      return std::max(x, y) <= factor * std::min(x, y);
                    });
}

class LayoutSearch {
 public:
  // Machines that differ by less than the factor `alike` are of one kind.
  LayoutSearch(const PlanRequest& request, double alike)
      : request_(request), classes_(request.machines) {
    const int n = static_cast<int>(request.machines.size());
    std::vector<std::vector<double>> figures;
    std::vector<int> similar;  // the first machine like each
    for (int m = 0; m < n; ++m) {
      figures.push_back(FiguresOf(request.machines[m]));
      similar.push_back(m);
      for (int other = 0; other < m; ++other) {
        if (similar[other] == other &&
            AreSimilar(figures[other], figures[m], alike)) {
          similar[m] = other;
          break;
        }
      }
    }
    std::vector<int> workers_of_host(static_cast<size_t>(n));
    for (int m = 0; m < n; ++m) ++workers_of_host[Host(m)];
    // Machines are of a kind if they are alike and have a host of their own;
    // those that share one are told apart by it.
    for (int m = 0; m < n; ++m) {
      kinds_.push_back(workers_of_host[Host(m)] == 1
                           ? similar[m]
                           : n * static_cast<int>(1 + Host(m)) + similar[m]);
    }
  }

  absl::StatusOr<LayoutResult> Run(int32_t replicas);
  // Plans each group for its share by the groups' rates.
  absl::StatusOr<Layout> Evaluate(const Groups& groups);

 private:
  // The best plan of a group, for a share of the job.
  struct GroupPlan {
    absl::Status status;
    PlanResult result;
  };
  struct Tried {
    Groups groups;  // those that have a plan
    double seconds = kNever;
  };

  size_t Host(int machine) const {
    return static_cast<size_t>(classes_.host(machine));
  }
  // A layout's share of the job as it is planned for.
  static double RoundShare(double share) {
    if (share >= 1) return 1;
    const double steps = std::round(std::log(share) / std::log(kShareStep));
    return std::min(1.0, std::pow(kShareStep, steps));
  }

  PlanRequest RequestOf(const std::vector<int>& group, double share) const;
  const GroupPlan& PlanOf(const std::vector<int>& group, double share);
  // Predicted generated tokens a second; 0 if the model does not fit.
  double RateOf(const std::vector<int>& group, double share);
  // Considers a grouping: groups that the model does not fit are spares.
  // Returns the job's seconds.
  double Try(const Groups& groups, int32_t replicas);
  double SecondsOf(const Groups& groups);
  Groups Usable(const Groups& groups);

  std::vector<int> Counts(int32_t replicas) const;
  void TryAlike(int32_t replicas);
  void TryMany(int32_t replicas);
  // Changes groups that take so many seconds.
  void Improve(Groups groups, double seconds, int32_t replicas);
  static Groups Sorted(Groups groups);
  // Returns the machines, the fastest first.
  std::vector<int> BySpeed();
  bool IsEqualKind() const {
    return std::all_of(kinds_.begin(), kinds_.end(),
                       [&](int kind) { return kind == kinds_[0]; });
  }
  absl::Status TooFew(int32_t replicas);
  std::vector<Alternative> Rejected(const Layout& best);
  std::string Describe(const Groups& groups) const;

  const PlanRequest& request_;
  const MachineClasses classes_;
  std::vector<int> kinds_;
  // By the group's kinds and its share.
  std::map<std::pair<std::vector<int>, double>, std::unique_ptr<GroupPlan>>
      plans_;
  // The best with each number of pipelines, and the second best of as many.
  std::map<size_t, std::pair<Tried, Tried>> best_;
  absl::Status status_;  // the first error that is no lack of memory
};

PlanRequest LayoutSearch::RequestOf(const std::vector<int>& group,
                                    double share) const {
  PlanRequest request = request_;
  request.workload = ShareOf(request_.workload, share);
  request.machines.clear();
  for (const int m : group) request.machines.push_back(request_.machines[m]);
  return request;
}

const LayoutSearch::GroupPlan& LayoutSearch::PlanOf(
    const std::vector<int>& group, double share) {
  std::vector<int> kinds;
  for (const int m : group) kinds.push_back(kinds_[m]);
  // The order counts where the layers are split evenly.
  std::unique_ptr<GroupPlan>& kept = plans_[{std::move(kinds), share}];
  if (kept == nullptr) {
    kept = std::make_unique<GroupPlan>();
    absl::StatusOr<PlanResult> made = MakePlan(RequestOf(group, share));
    if (made.ok()) {
      kept->result = *std::move(made);
    } else {
      kept->status = made.status();
      if (!absl::IsResourceExhausted(kept->status) &&
          !absl::IsFailedPrecondition(kept->status)) {
        status_.Update(kept->status);
      }
    }
  }
  return *kept;
}

double LayoutSearch::RateOf(const std::vector<int>& group, double share) {
  const GroupPlan& plan = PlanOf(group, share);
  return plan.status.ok() ? plan.result.best.tokens_per_second : 0;
}

Groups LayoutSearch::Usable(const Groups& groups) {
  Groups usable;
  const double share =
      RoundShare(1.0 / static_cast<double>(std::max<size_t>(1, groups.size())));
  for (const std::vector<int>& group : groups) {
    if (RateOf(group, share) > 0) usable.push_back(group);
  }
  return usable;
}

double LayoutSearch::SecondsOf(const Groups& groups) {
  // As the rates that shares go by are of equal shares, these are right where
  // groups are alike, and near it where they are not.
  const double equal = RoundShare(1.0 / static_cast<double>(groups.size()));
  double sum = 0;
  for (const std::vector<int>& group : groups) sum += RateOf(group, equal);
  const double tokens = request_.workload.output_tokens();
  std::vector<PipelinePlan> pipelines;
  for (const std::vector<int>& group : groups) {
    const double share = RateOf(group, equal) / sum;
    const GroupPlan& plan = PlanOf(group, RoundShare(share));
    if (!plan.status.ok()) return kNever;
    PipelinePlan& pipeline = pipelines.emplace_back();
    pipeline.machines = group;
    pipeline.plan = plan.result.best;
    // The plan is for a share that is about right.
    const double seconds = share * tokens / plan.result.best.tokens_per_second;
    const double scale = seconds / pipeline.plan.seconds;
    pipeline.plan.seconds = seconds;
    for (StagePlan& stage : pipeline.plan.stages) {
      stage.machine = group[static_cast<size_t>(stage.machine)];
      stage.seconds *= scale;
    }
  }
  return LayoutSeconds(request_, pipelines);
}

double LayoutSearch::Try(const Groups& groups, int32_t replicas) {
  if (!status_.ok()) return kNever;
  const Groups usable = Usable(groups);
  if (usable.empty()) return kNever;
  const double seconds = SecondsOf(usable);
  if (replicas > 0 && usable.size() != static_cast<size_t>(replicas)) {
    return kNever;
  }
  auto& [best, second] = best_[usable.size()];
  if (seconds < best.seconds) {
    second = std::exchange(best, {usable, seconds});
  } else if (seconds < second.seconds) {
    second = {usable, seconds};
  }
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
  for (const int number : Counts(replicas)) {
    const auto count = static_cast<size_t>(number);
    Groups even(count);
    Groups rest(count + 1);
    for (size_t m = 0; m < n; ++m) {
      even[m * count / n].push_back(static_cast<int>(m));
      rest[std::min(m / (n / count), count)].push_back(static_cast<int>(m));
    }
    if (Usable({even.back()}).empty() && Usable({even.front()}).empty()) {
      break;  // smaller ones hold no more
    }
    Try(even, replicas);
    if (rest.back().empty()) continue;
    rest.pop_back();
    Try(rest, replicas);
  }
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

void LayoutSearch::Improve(Groups groups, double seconds, int32_t replicas) {
  for (int round = 0; round < kMaxRounds; ++round) {
    Groups better;
    const auto consider = [&](const Groups& changed) {
      if (plans_.size() >= kMaxGroups) return;
      const double found = Try(Sorted(changed), replicas);
      if (found >= (1 - kSameTime) * seconds) return;
      seconds = found;
      better = changed;
    };
    for (size_t a = 0; a < groups.size(); ++a) {
      for (size_t b = 0; b < groups.size(); ++b) {
        if (a == b) continue;
        std::set<std::pair<int, int>> kinds;
        for (size_t i = 0; i < groups[a].size(); ++i) {
          const int moved = kinds_[groups[a][i]];
          if (groups[a].size() > 1 && kinds.insert({moved, -1}).second) {
            Groups changed = groups;
            changed[b].push_back(changed[a][i]);
            changed[a].erase(changed[a].begin() + static_cast<int64_t>(i));
            consider(changed);
          }
          for (size_t j = 0; a < b && j < groups[b].size(); ++j) {
            const int other = kinds_[groups[b][j]];
            if (moved == other || !kinds.insert({moved, other}).second) {
              continue;
            }
            Groups changed = groups;
            std::swap(changed[a][i], changed[b][j]);
            consider(changed);
          }
        }
      }
    }
    if (better.empty()) return;
    groups = better;
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

absl::StatusOr<Layout> LayoutSearch::Evaluate(const Groups& groups) {
  const double equal = RoundShare(1.0 / static_cast<double>(groups.size()));
  double sum = 0;
  for (const std::vector<int>& group : groups) {
    const GroupPlan& plan = PlanOf(group, equal);
    SLUICE_RETURN_IF_ERROR(plan.status);
    sum += plan.result.best.tokens_per_second;
  }
  Layout layout;
  std::set<int> used;
  for (const std::vector<int>& group : groups) {
    PipelinePlan& pipeline = layout.pipelines.emplace_back();
    pipeline.machines = group;
    pipeline.share = RateOf(group, equal) / sum;
    // The plan itself is for the exact share.
    SLUICE_ASSIGN_OR_RETURN(PlanResult made,
                            MakePlan(RequestOf(group, pipeline.share)));
    pipeline.plan = std::move(made.best);
    for (StagePlan& stage : pipeline.plan.stages) {
      stage.machine = group[static_cast<size_t>(stage.machine)];
    }
    used.insert(group.begin(), group.end());
  }
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
  const GroupPlan& together = PlanOf(all, 1);
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
      const double share = RoundShare(1.0 / static_cast<double>(count));
      for (const std::vector<int>& group : groups) {
        const GroupPlan& plan = PlanOf(group, share);
        if (!plan.status.ok()) why = plan.status;
      }
      break;
    }
  }
  return ResourceExhausted(
      "each of ", replicas,
      " replicas needs room for the whole model among its workers, but there "
      "is room for about ",
      most, " among these ", kinds_.size(), ": ", why.message());
}

std::string LayoutSearch::Describe(const Groups& groups) const {
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
  std::vector<Alternative> rejected;
  const double tokens = request_.workload.output_tokens();
  const auto add = [&](const Tried& tried) {
    if (!std::isfinite(tried.seconds)) return;
    rejected.push_back(
        {.description = Describe(tried.groups),
         // Never above the chosen one: that was planned for exact shares.
         .tokens_per_second =
             std::min(tokens / tried.seconds, best.tokens_per_second),
         .why = absl::StrFormat("takes %.4g s, the best %.4g s",
                                std::max(tried.seconds, best.seconds),
                                best.seconds)});
  };
  for (const auto& [count, of_count] : best_) {
    if (count != best.pipelines.size()) add(of_count.first);
    if (count == best.pipelines.size()) add(of_count.second);
  }
  for (size_t count = 1; count <= kinds_.size(); ++count) {
    if (best_.contains(count)) continue;
    std::vector<int> smallest(kinds_.size() / count);
    std::iota(smallest.begin(), smallest.end(), 0);
    const GroupPlan& plan =
        PlanOf(smallest, RoundShare(1.0 / static_cast<double>(count)));
    if (plan.status.ok()) continue;
    rejected.push_back({.description = absl::StrCat("replicas=", count),
                        .why = std::string(plan.status.message())});
    break;  // more are smaller still
  }
  return rejected;
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
  const Tried* best = nullptr;
  for (const auto& [count, of_count] : best_) {
    const Tried& tried = of_count.first;
    if (best == nullptr || tried.seconds < (1 - kSameTime) * best->seconds) {
      best = &tried;
    }
  }
  if (best == nullptr || !std::isfinite(best->seconds)) {
    return TooFew(replicas);
  }
  LayoutResult result;
  Groups groups = best->groups;
  std::sort(groups.begin(), groups.end());
  SLUICE_ASSIGN_OR_RETURN(result.best, Evaluate(groups));
  if (groups.size() == 1) {
    result.rejected_plans = PlanOf(groups[0], 1).result.rejected;
  }
  result.rejected = Rejected(result.best);
  result.groups = static_cast<int64_t>(plans_.size());
  return result;
}

// Adds machine `m` and those after it to the groups, each machine to one of the
// groups before which one of its kind is in, or a new one: of machines of a
// kind, only groupings in which they come in order are seen.
void Extend(const std::vector<int>& kinds, size_t m, Groups* groups,
            std::set<std::vector<std::vector<int>>>* seen,
            absl::FunctionRef<void(const Groups&)> take) {
  if (m == kinds.size()) {
    std::vector<std::vector<int>> key;
    for (const std::vector<int>& group : *groups) {
      std::vector<int>& kind = key.emplace_back();
      for (const int machine : group) {
        kind.push_back(kinds[static_cast<size_t>(machine)]);
      }
      std::sort(kind.begin(), kind.end());
    }
    std::sort(key.begin(), key.end());
    if (seen->insert(std::move(key)).second) take(*groups);
    return;
  }
  for (size_t g = 0; g < groups->size(); ++g) {
    (*groups)[g].push_back(static_cast<int>(m));
    Extend(kinds, m + 1, groups, seen, take);
    (*groups)[g].pop_back();
  }
  groups->push_back({static_cast<int>(m)});
  Extend(kinds, m + 1, groups, seen, take);
  groups->pop_back();
}

}  // namespace

double LayoutSeconds(const PlanRequest& request,
                     const std::vector<PipelinePlan>& pipelines) {
  const MachineClasses classes(request.machines);
  double seconds = 0;
  std::map<int, double> of_host;
  for (const PipelinePlan& pipeline : pipelines) {
    seconds = std::max(seconds, pipeline.plan.seconds);
    for (const StagePlan& stage : pipeline.plan.stages) {
      of_host[classes.host(stage.machine)] += stage.seconds;
    }
  }
  if (pipelines.size() > 1) {
    for (const auto& [host, sum] : of_host) seconds = std::max(seconds, sum);
  }
  return seconds;
}

namespace {

// The layout for the only formats of the request.
absl::StatusOr<LayoutResult> MakeOfOneFormat(const PlanRequest& request,
                                             int32_t replicas) {
  absl::StatusOr<LayoutResult> made =
      LayoutSearch(request, kAlike).Run(replicas);
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
  return LayoutSearch(request, 1).Evaluate(groups);
}

void ForEachGrouping(const std::vector<int>& kinds,
                     absl::FunctionRef<void(const Groups&)> take) {
  Groups groups;
  std::set<std::vector<std::vector<int>>> seen;
  Extend(kinds, 0, &groups, &seen, take);
}

}  // namespace sluice
