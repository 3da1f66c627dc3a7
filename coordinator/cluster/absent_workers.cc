#include "coordinator/cluster/absent_workers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/worker_timeouts.h"

namespace sluice {
namespace {

constexpr size_t kMaxEntries = 128;

constexpr size_t kMaxLeftOut = 1024;
constexpr int kMaxDoublings = 30;

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
  if (entry.kind == v1::AbsentWorker::KIND_LEFT) {
    return absl::StrCat("worker '", entry.name, "' was stopped");
  }
  const bool refused = entry.kind == v1::AbsentWorker::KIND_REFUSED;
  return absl::StrCat("worker '", entry.name, "' was ",
                      refused ? "refused: " : "lost: ", entry.reason);
}

void AbsentWorkers::Describe(absl::Duration now, v1::ClusterState* state) {
  while (!entries_.empty() &&
         now - entries_.back().at > WorkerTimeouts::kLostKept) {
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

void LeftOut::Add(const std::string& name, const std::string& why,
                  absl::Duration now) {
  if (entries_.size() >= kMaxLeftOut && !entries_.contains(name)) {
    entries_.erase(std::min_element(entries_.begin(), entries_.end(),
                                    [](const auto& a, const auto& b) {
                                      return a.second.until < b.second.until;
                                    }));
  }
  Entry& entry = entries_[name];
  // Failures so long ago say nothing about now.
  if (entry.times > 0 && now - entry.until > max_) entry.times = 0;
  entry.times = std::min(entry.times + 1, kMaxDoublings);
  entry.why = why;
  entry.since = now;
  entry.until =
      now + std::min(max_, first_ * (int64_t{1} << (entry.times - 1)));
}

const LeftOut::Entry* LeftOut::Find(const std::string& name,
                                    absl::Duration now) const {
  const auto it = entries_.find(name);
  return it == entries_.end() || it->second.until <= now ? nullptr
                                                         : &it->second;
}

}  // namespace sluice
