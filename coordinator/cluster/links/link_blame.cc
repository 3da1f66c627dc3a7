#include "coordinator/cluster/links/link_blame.h"

#include <algorithm>

namespace sluice {

LinkBlame::Verdict LinkBlame::OnUnreached(const std::string& from,
                                          const std::string& to) {
  std::set<std::string>& mine = unreached_[from];
  mine.insert(to);
  const bool only_me =
      std::all_of(unreached_.begin(), unreached_.end(), [&](const auto& entry) {
        return entry.first == from ||
               std::none_of(mine.begin(), mine.end(),
                            [&](const std::string& name) {
                              return entry.second.contains(name);
                            });
      });
  if (mine.size() < 2 || !only_me) return {to, {}};
  return {from, {mine.begin(), mine.end()}};
}

void LinkBlame::OnReached(const std::string& from, const std::string& to) {
  const auto it = unreached_.find(from);
  if (it == unreached_.end()) return;
  it->second.erase(to);
  if (it->second.empty()) unreached_.erase(it);
}

void LinkBlame::Forget(const std::string& name) {
  unreached_.erase(name);
  for (auto it = unreached_.begin(); it != unreached_.end();) {
    it->second.erase(name);
    it = it->second.empty() ? unreached_.erase(it) : std::next(it);
  }
}

}  // namespace sluice
