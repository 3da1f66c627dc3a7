#include "scheduler/plan/rank_layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "scheduler/plan/likeness.h"
#include "scheduler/plan/weights_stay.h"

namespace sluice {
namespace {

// Up to so many ways to choose the sizes of all groups, all are tried.
constexpr size_t kMaxForAll = 16;
// The rounds in which kinds of machines change their sizes, if there are more.
constexpr int kMaxRounds = 3;
constexpr int64_t kMaxGroupings = 4096;
// Layouts that differ less are equals: fewer ranks wait for each other less if
// figures are not quite right.
constexpr double kSameTime = 0.02;

// A machine whose parts may compute stages together, or a part alone.
struct Whole {
  std::vector<int> parts;  // indices in the request
  int kind = 0;            // the first whole with as many parts like these
  std::vector<int> sizes;  // that groups may have, ascending
  // Whether it is one worker, which may have so many ranks; else groups are of
  // parts.
  bool is_worker = false;

  int num_parts() const { return static_cast<int>(parts.size()); }
  bool has_choice() const { return sizes.size() > 1; }
};

std::vector<int> SizesOf(int parts) {
  std::vector<int> sizes;
  for (int size = 1; size <= std::min(parts, kMaxRanks); ++size) {
    if (parts % size == 0) sizes.push_back(size);
  }
  return sizes;
}

std::vector<Whole> WholesOf(const std::vector<MachineProfile>& machines) {
  std::vector<Whole> wholes;
  for (int m = 0; m < static_cast<int>(machines.size()); ++m) {
    const auto same =
        std::find_if(wholes.begin(), wholes.end(), [&](const Whole& whole) {
          return CanComputeTogether(machines[whole.parts.front()], machines[m]);
        });
    if (same != wholes.end()) {
      same->parts.push_back(m);
    } else {
      wholes.push_back({.parts = {m}});
    }
  }
  for (int w = 0; w < static_cast<int>(wholes.size()); ++w) {
    Whole& whole = wholes[w];
    const MachineProfile& first = machines[whole.parts.front()];
    whole.is_worker = !first.rank_choices.empty();
    if (whole.is_worker) {
      whole.sizes = {first.ranks};
      for (const RankChoice& choice : first.rank_choices) {
        whole.sizes.push_back(choice.ranks);
      }
    } else {
      whole.sizes = SizesOf(whole.num_parts());
    }
    whole.kind = w;
    const auto figures = FiguresOf(first);
    for (int before = 0; before < w; ++before) {
      const Whole& other = wholes[before];
      if (other.kind == before && other.num_parts() == whole.num_parts() &&
          other.sizes == whole.sizes &&
          AreSimilar(figures, FiguresOf(machines[other.parts.front()]),
                     kAlikeFactor)) {
        whole.kind = before;
        break;
      }
    }
  }
  return wholes;
}

// The machines with groups of `sizes[w]` parts of whole w.
Grouping Grouped(const std::vector<MachineProfile>& machines,
                 const std::vector<Whole>& wholes,
                 const std::vector<int>& sizes) {
  std::map<int, std::vector<int>> groups;  // by their first parts
  std::map<int, int> ranks;                // of workers
  for (size_t w = 0; w < wholes.size(); ++w) {
    if (wholes[w].is_worker) {
      groups[wholes[w].parts.front()] = wholes[w].parts;
      ranks[wholes[w].parts.front()] = sizes[w];
      continue;
    }
    for (size_t p = 0; p < wholes[w].parts.size(); ++p) {
      const size_t first = p - p % static_cast<size_t>(sizes[w]);
      groups[wholes[w].parts[first]].push_back(wholes[w].parts[p]);
    }
  }
  Grouping grouping;
  for (auto& [first, parts] : groups) {
    std::vector<const MachineProfile*> together;
    for (const int part : parts) together.push_back(&machines[part]);
    grouping.machines.push_back(parts.size() == 1 ? machines[first]
                                                  : TogetherAs(together));
    if (const auto it = ranks.find(first); it != ranks.end()) {
      grouping.machines.back() = *machines[first].WithRanks(it->second);
    }
    grouping.parts.push_back(std::move(parts));
  }
  return grouping;
}

class RankSearch {
 public:
  RankSearch(const PlanRequest& request, int32_t replicas)
      : request_(request),
        replicas_(replicas),
        wholes_(WholesOf(request.machines)) {
    const std::vector<int32_t>& allowed = request.choices.ranks;
    for (Whole& whole : wholes_) {
      if (!whole.is_worker || allowed.empty()) continue;
      std::erase_if(whole.sizes, [&](int size) {
        return std::count(allowed.begin(), allowed.end(), size) == 0;
      });
    }
  }

  absl::StatusOr<RankLayout> Run();

 private:
  using Sizes = std::vector<int>;  // of each whole's groups

  struct Tried {
    Grouping grouping;
    absl::StatusOr<LayoutResult> layout;
    double seconds() const { return layout->best.seconds; }
  };

  // All choices of sizes, machines of a kind in ascending order; none if there
  // are more than kMaxForAll.
  std::vector<Sizes> All() const;
  // Returns the seconds; nothing if no layout was found.
  std::optional<double> Try(const Sizes& sizes);
  // Each kind's size at its turn, as long as that helps.
  void Improve(Sizes sizes);
  Sizes Choose() const;
  std::string Describe(const Sizes& sizes) const;
  // Has the policies say how many ranks there are, where that is chosen.
  void NameRanks(RankLayout* result) const;

  const PlanRequest& request_;
  const int32_t replicas_;
  std::vector<Whole> wholes_;
  std::map<Sizes, Tried> tried_;
};

std::vector<RankSearch::Sizes> RankSearch::All() const {
  std::vector<Sizes> all = {{}};
  for (const Whole& whole : wholes_) {
    std::vector<Sizes> longer;
    for (const Sizes& sizes : all) {
      int least = 1;  // the last of the kind
      for (size_t w = 0; w < sizes.size(); ++w) {
        if (wholes_[w].kind == whole.kind) least = sizes[w];
      }
      for (const int size : whole.sizes) {
        if (size < least) continue;
        longer.push_back(sizes);
        longer.back().push_back(size);
      }
    }
    if (longer.size() > kMaxForAll) return {};
    all = std::move(longer);
  }
  return all;
}

std::optional<double> RankSearch::Try(const Sizes& sizes) {
  auto it = tried_.find(sizes);
  if (it == tried_.end()) {
    PlanRequest request = request_;
    Grouping grouping = Grouped(request_.machines, wholes_, sizes);
    request.machines = grouping.machines;
    auto layout = MakeLayout(request, replicas_);
    it = tried_.emplace(sizes, Tried{std::move(grouping), std::move(layout)})
             .first;
  }
  if (!it->second.layout.ok()) return std::nullopt;
  return it->second.seconds();
}

void RankSearch::Improve(Sizes sizes) {
  std::optional<double> best = Try(sizes);
  for (int round = 0; round < kMaxRounds; ++round) {
    const Sizes before = sizes;
    for (size_t kind = 0; kind < wholes_.size(); ++kind) {
      if (wholes_[kind].kind != static_cast<int>(kind)) continue;
      for (const int size : wholes_[kind].sizes) {
        Sizes changed = sizes;
        for (size_t w = 0; w < wholes_.size(); ++w) {
          if (wholes_[w].kind == static_cast<int>(kind)) changed[w] = size;
        }
        const std::optional<double> seconds = Try(changed);
        if (!seconds || (best && *seconds >= *best)) continue;
        best = seconds;
        sizes = std::move(changed);
      }
    }
    if (sizes == before) return;
  }
}

// The fastest; of those that take about as long, the one of fewest ranks.
RankSearch::Sizes RankSearch::Choose() const {
  std::optional<double> least;
  for (const auto& [sizes, tried] : tried_) {
    if (tried.layout.ok() && (!least || tried.seconds() < *least)) {
      least = tried.seconds();
    }
  }
  Sizes best;
  for (const auto& [sizes, tried] : tried_) {
    if (!tried.layout.ok() || tried.seconds() * (1 - kSameTime) > *least) {
      continue;
    }
    const auto ranks = [](const Sizes& of) {
      return std::accumulate(of.begin(), of.end(), 0);
    };
    if (best.empty() || ranks(sizes) < ranks(best)) best = sizes;
  }
  return best;
}

std::string RankSearch::Describe(const Sizes& sizes) const {
  // By the sizes, the machines that have them.
  std::map<std::pair<int, bool>, std::vector<std::string>> by_size;
  for (size_t w = 0; w < wholes_.size(); ++w) {
    const Whole& whole = wholes_[w];
    if (!whole.has_choice()) continue;
    const MachineProfile& machine = request_.machines[whole.parts.front()];
    by_size[{sizes[w], whole.is_worker}].push_back(
        whole.is_worker ? machine.name : machine.part_of);
  }
  std::vector<std::string> texts;
  for (const auto& [kind, names] : by_size) {
    const auto& [size, is_worker] = kind;
    std::string text = size == 1 && !is_worker
                           ? std::string("parts alone")
                           : absl::StrCat("tensor-parallel=", size);
    if (by_size.size() > 1) {
      absl::StrAppend(&text, " on ", names.front());
      if (names.size() > 1) {
        absl::StrAppend(&text, " and ", names.size() - 1, " more");
      }
    }
    texts.push_back(std::move(text));
  }
  return absl::StrJoin(texts, ", ");
}

void RankSearch::NameRanks(RankLayout* result) const {
  for (PipelinePlan& pipeline : result->layout.best.pipelines) {
    for (StagePlan& stage : pipeline.plan.stages) {
      const auto machine = static_cast<size_t>(stage.machine);
      const int part = result->grouping.parts[machine].front();
      const int32_t ranks = result->grouping.machines[machine].ranks;
      const bool chosen = !request_.machines[part].rank_choices.empty();
      if (chosen || ranks > 1) stage.policy.ranks = ranks;
    }
    PlanRequest grouped = request_;
    grouped.machines = result->grouping.machines;
    pipeline.plan.tensor_parallel = WhyWeightsStay(grouped, pipeline.plan);
  }
}

absl::StatusOr<RankLayout> RankSearch::Run() {
  Sizes alone;
  for (const Whole& whole : wholes_) {
    if (whole.sizes.empty()) {
      return InvalidArgument(
          "plan: tensor-parallel=", request_.choices.ranks.front(),
          ", but worker '", request_.machines[whole.parts.front()].name,
          "' may not have so many ranks");
    }
    alone.push_back(whole.sizes.front());
  }
  const std::vector<Sizes> all = All();
  for (const Sizes& sizes : all) Try(sizes);
  if (all.empty()) {
    Sizes largest;
    for (const Whole& whole : wholes_) largest.push_back(whole.sizes.back());
    Improve(alone);
    Improve(largest);
  }
  const Sizes best = Choose();
  if (best.empty()) return tried_.at(alone).layout.status();
  RankLayout result = {.grouping = tried_.at(best).grouping,
                       .layout = *tried_.at(best).layout};
  NameRanks(&result);
  const double seconds = tried_.at(best).seconds();
  std::set<std::string> seen = {Describe(best)};
  for (const auto& [sizes, tried] : tried_) {
    Alternative other = {.description = Describe(sizes)};
    if (!seen.insert(other.description).second) continue;
    if (!tried.layout.ok()) {
      other.why = std::string(tried.layout.status().message());
    } else if (tried.seconds() < seconds) {
      other.why = absl::StrFormat(
          "takes about %.4g s, %.2g %% less than the best: not worth that "
          "more ranks wait for each other",
          tried.seconds(), 100 * (1 - tried.seconds() / seconds));
    } else {
      other.why = absl::StrFormat("takes about %.4g s, the best %.4g s",
                                  tried.seconds(), seconds);
    }
    if (tried.layout.ok()) {
      other.tokens_per_second = tried.layout->best.tokens_per_second;
    }
    result.rejected.push_back(std::move(other));
  }
  return result;
}

void Scale(double factor, DiskProfile* disk) {
  disk->read_bytes_per_second *= factor;
  disk->write_bytes_per_second *= factor;
  for (DiskRate& rate : disk->rates) {
    rate.read_bytes_per_second *= factor;
    rate.write_bytes_per_second *= factor;
  }
  // A byte is read by one of the ranks, and takes time of its cores only.
  disk->compute_seconds_per_byte /= factor;
}

double Speed(const MachineProfile& machine) {
  const ComputeProfile& compute = machine.compute();
  return compute.products.front().flops_by_rows.Best();
}

}  // namespace

MachineProfile TogetherAs(const std::vector<const MachineProfile*>& parts) {
  MachineProfile whole = *parts.front();
  whole.ranks = static_cast<int32_t>(parts.size());
  whole.fingerprint.clear();
  const MachineProfile* slowest = parts.front();
  for (const MachineProfile* part : parts) {
    if (Speed(*part) < Speed(*slowest)) slowest = part;
    if (part == parts.front()) continue;
    whole.device_memory_bytes =
        std::min(whole.device_memory_bytes, part->device_memory_bytes);
    whole.host_memory_bytes += part->host_memory_bytes;
    whole.disk_bytes += part->disk_bytes;
    whole.threads += part->threads;
    whole.exchange.bytes_per_second = std::min(whole.exchange.bytes_per_second,
                                               part->exchange.bytes_per_second);
    whole.exchange.latency_seconds = std::max(whole.exchange.latency_seconds,
                                              part->exchange.latency_seconds);
    whole.host_to_device_bytes_per_second =
        std::min(whole.host_to_device_bytes_per_second,
                 part->host_to_device_bytes_per_second);
    whole.device_to_host_bytes_per_second =
        std::min(whole.device_to_host_bytes_per_second,
                 part->device_to_host_bytes_per_second);
    whole.step_seconds = std::max(whole.step_seconds, part->step_seconds);
  }
  whole.host = slowest->host;
  whole.device_compute = slowest->device_compute;
  whole.part_of.clear();
  Scale(static_cast<double>(parts.size()), &whole.disk);
  return whole;
}

bool CanComputeTogether(const MachineProfile& a, const MachineProfile& b) {
  return !a.part_of.empty() && a.part_of == b.part_of &&
         (a.machine.empty() || a.machine != b.machine) && a.ranks == 1 &&
         b.ranks == 1 && a.rank_choices.empty() && b.rank_choices.empty() &&
         a.has_exchange() && b.has_exchange() && a.has_gpu() == b.has_gpu() &&
         AreSimilar(FiguresOf(a), FiguresOf(b), kAlikeFactor);
}

absl::StatusOr<RankLayout> MakeRankLayout(const PlanRequest& request,
                                          int32_t replicas) {
  SLUICE_RETURN_IF_ERROR(request.Check());
  return RankSearch(request, replicas).Run();
}

void ForEachRankGrouping(const std::vector<MachineProfile>& machines,
                         absl::FunctionRef<void(const Grouping&)> take) {
  const std::vector<Whole> wholes = WholesOf(machines);
  std::vector<size_t> chosen(wholes.size());
  for (int64_t i = 0; i < kMaxGroupings; ++i) {
    std::vector<int> sizes;
    for (size_t w = 0; w < wholes.size(); ++w) {
      sizes.push_back(wholes[w].sizes[chosen[w]]);
    }
    take(Grouped(machines, wholes, sizes));
    size_t w = 0;
    while (w < wholes.size() && ++chosen[w] == wholes[w].sizes.size()) {
      chosen[w++] = 0;
    }
    if (w == wholes.size()) return;
  }
}

}  // namespace sluice
