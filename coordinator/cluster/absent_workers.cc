#include "coordinator/cluster/absent_workers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr size_t kMaxEntries = 32;
constexpr absl::Duration kKept = absl::Hours(1);

}  // namespace

bool AbsentWorkers::Put(const std::string& name, v1::AbsentWorker::Kind kind,
                        const std::string& reason, absl::Duration now) {
  const bool news =
      std::none_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
        return entry.name == name && entry.kind == kind &&
               entry.reason == reason;
      });
  Present(name);
  entries_.push_front({name, kind, reason, now});
  if (entries_.size() > kMaxEntries) entries_.pop_back();
  return news;
}

void AbsentWorkers::Present(const std::string& name) {
  entries_.erase(
      std::remove_if(entries_.begin(), entries_.end(),
                     [&](const Entry& entry) { return entry.name == name; }),
      entries_.end());
}

std::string AbsentWorkers::newest() const {
  if (entries_.empty()) return "";
  const Entry& entry = entries_.front();
  const bool refused = entry.kind == v1::AbsentWorker::KIND_REFUSED;
  return absl::StrCat("worker '", entry.name, "' was ",
                      refused ? "refused: " : "lost: ", entry.reason);
}

void AbsentWorkers::Describe(absl::Duration now, v1::ClusterState* state) {
  while (!entries_.empty() && now - entries_.back().at > kKept) {
    entries_.pop_back();
  }
  for (const Entry& entry : entries_) {
    v1::AbsentWorker* absent = state->add_absent();
    absent->set_name(entry.name);
    absent->set_kind(entry.kind);
    absent->set_reason(entry.reason);
    absent->set_seconds_ago(absl::ToDoubleSeconds(now - entry.at));
  }
}

}  // namespace sluice
