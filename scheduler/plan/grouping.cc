#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "scheduler/plan/layout.h"

namespace sluice {
namespace {

using Groups = std::vector<std::vector<int>>;

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

void ForEachGrouping(const std::vector<int>& kinds,
                     absl::FunctionRef<void(const Groups&)> take) {
  Groups groups;
  std::set<std::vector<std::vector<int>>> seen;
  Extend(kinds, 0, &groups, &seen, take);
}

}  // namespace sluice
