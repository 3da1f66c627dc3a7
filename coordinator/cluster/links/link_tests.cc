#include "coordinator/cluster/links/link_tests.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/links/link_facts.h"

namespace sluice {
namespace {

// A worker says within 6 s that a silent peer does not answer.
constexpr absl::Duration kAnswerTime = absl::Seconds(10);
constexpr absl::Duration kFirstPause = absl::Seconds(5);
constexpr absl::Duration kMaxPause = absl::Seconds(30);
constexpr int kMaxFailures = 8;

}  // namespace

void LinkTests::Forget(const std::vector<WorkerId>& workers) {
  const auto here = [&](WorkerId id) {
    return std::binary_search(workers.begin(), workers.end(), id);
  };
  for (auto it = links_.begin(); it != links_.end();) {
    if (here(it->first.first) && here(it->first.second)) {
      ++it;
      continue;
    }
    if (!it->second.error.empty()) --broken_;
    if (it->second.asked != 0 && !it->second.known) --first_tests_;
    it = links_.erase(it);
  }
  std::erase_if(open_, [&](const auto& entry) {
    return !here(entry.second.question.from);
  });
}

void LinkTests::Set(const Pair& pair, Link* link, const std::string& error,
                    absl::Duration now) {
  ++version_;
  if (link->asked != 0 && !link->known) --first_tests_;
  broken_ += (error.empty() ? 0 : 1) - (link->error.empty() ? 0 : 1);
  link->known = true;
  link->error = error;
  link->silent = false;
  link->asked = 0;
  link->failures =
      error.empty() ? 0 : std::min(link->failures + 1, kMaxFailures);
  link->tested_at = now;
  if (error.empty()) return;
  link->again =
      now +
      std::min(kMaxPause, kFirstPause * (int64_t{1} << (link->failures - 1)));
  look_at_ = std::min(look_at_, link->again);
}

void LinkTests::EndOverdue(absl::Duration now) {
  std::vector<int64_t> overdue;
  for (const auto& [number, open] : open_) {
    if (open.due <= now) overdue.push_back(number);
  }
  for (const int64_t number : overdue) {
    const Question question = open_.at(number).question;
    OnAnswer(
        number, question.from,
        std::vector<std::string>(
            question.to.size(),
            absl::StrCat("it has not said within ",
                         absl::FormatDuration(kAnswerTime), " whether it can")),
        now);
    for (const WorkerId to : question.to) {
      const auto link = links_.find({question.from, to});
      if (link != links_.end()) link->second.silent = true;
    }
  }
}

std::vector<LinkTests::Question> LinkTests::Ask(
    const std::vector<WorkerId>& workers, absl::Duration now) {
  if (workers != workers_) {
    ++version_;
    Forget(workers);
    workers_ = workers;
    look_at_ = now;
  }
  if (now < look_at_) return {};
  EndOverdue(now);
  look_at_ = absl::InfiniteDuration();
  std::vector<Question> questions;
  const size_t peers =
      workers.empty() ? 0 : std::min(workers.size() - 1, kMaxLinkPeers);
  for (size_t i = 0; i < workers.size(); ++i) {
    Question question = {.from = workers[i]};
    for (size_t k = 1; k <= peers; ++k) {
      const WorkerId to = workers[(i + k) % workers.size()];
      Link& link = links_[{workers[i], to}];
      if (link.asked != 0) continue;
      if (link.known && (link.error.empty() || now < link.again)) {
        if (!link.error.empty()) look_at_ = std::min(look_at_, link.again);
        continue;
      }
      if (!link.known) ++first_tests_;
      link.asked = last_number_ - 1;
      question.to.push_back(to);
    }
    if (question.to.empty()) continue;
    question.number = --last_number_;
    open_[question.number] = {question, now + kAnswerTime};
    questions.push_back(std::move(question));
  }
  for (const auto& [number, open] : open_) {
    look_at_ = std::min(look_at_, open.due);
  }
  if (first_tests_ > 0 && !testing_since_) testing_since_ = now;
  return questions;
}

bool LinkTests::OnAnswer(int64_t number, WorkerId from,
                         const std::vector<std::string>& errors,
                         absl::Duration now) {
  const auto it = open_.find(number);
  if (it == open_.end() || it->second.question.from != from) return false;
  const Question question = std::move(it->second.question);
  open_.erase(it);
  for (size_t i = 0; i < question.to.size(); ++i) {
    const auto link = links_.find({from, question.to[i]});
    if (link == links_.end() || link->second.asked != number) continue;
    Set(link->first, &link->second,
        i < errors.size() ? errors[i] : "its answer has no word of it", now);
  }
  if (first_tests_ == 0) testing_since_.reset();
  return true;
}

void LinkTests::Remove(WorkerId id) {
  if (std::erase(workers_, id) == 0) return;
  Forget(workers_);
  ++version_;
  look_at_ = absl::ZeroDuration();  // the ring has changed
}

void LinkTests::Found(WorkerId from, WorkerId to, const std::string& error,
                      absl::Duration now) {
  for (const WorkerId id : {from, to}) {
    if (!std::binary_search(workers_.begin(), workers_.end(), id)) return;
  }
  Link& link = links_[{from, to}];
  Set({from, to}, &link, error, now);
  if (first_tests_ == 0) testing_since_.reset();
}

void LinkTests::Recheck(const std::vector<WorkerId>& workers) {
  ++version_;
  const std::set<WorkerId> those(workers.begin(), workers.end());
  for (auto& [pair, link] : links_) {
    if (!those.contains(pair.first) || !those.contains(pair.second) ||
        !link.known || !link.error.empty()) {
      continue;
    }
    link.known = false;
    if (link.asked != 0) ++first_tests_;
  }
  look_at_ = absl::ZeroDuration();
}

void LinkTests::Hasten(const std::vector<WorkerId>& workers) {
  const std::set<WorkerId> those(workers.begin(), workers.end());
  for (auto& [pair, link] : links_) {
    if (link.error.empty() || !those.contains(pair.first) ||
        !those.contains(pair.second)) {
      continue;
    }
    link.failures = std::min(link.failures, 1);
    link.again = std::min(link.again, link.tested_at + kFirstPause);
    look_at_ = std::min(look_at_, link.again);
  }
}

bool LinkTests::Works(WorkerId from, WorkerId to) const {
  const auto it = links_.find({from, to});
  return it != links_.end() && it->second.known && it->second.error.empty();
}

bool LinkTests::Broken(WorkerId from, WorkerId to) const {
  if (broken_ == 0) return false;
  const auto it = links_.find({from, to});
  return it != links_.end() && !it->second.error.empty();
}

std::string LinkTests::Why(WorkerId from, WorkerId to) const {
  const auto it = links_.find({from, to});
  return it == links_.end() ? "" : it->second.error;
}

bool LinkTests::Testing(absl::Duration now) const {
  return first_tests_ > 0 && testing_since_ &&
         now - *testing_since_ < kAnswerTime;
}

std::set<WorkerId> LinkTests::Untested() const {
  std::set<WorkerId> without;
  if (first_tests_ == 0) return without;
  for (;;) {
    std::map<WorkerId, std::pair<int, int>> open;  // all, and as the asker
    for (const auto& [pair, link] : links_) {
      if (link.known || link.asked == 0 || without.contains(pair.first) ||
          without.contains(pair.second)) {
        continue;
      }
      ++open[pair.first].first;
      ++open[pair.first].second;
      ++open[pair.second].first;
    }
    if (open.empty()) return without;
    // Of equals, one that owes an answer, or else came last.
    WorkerId most = open.begin()->first;
    for (const auto& [id, count] : open) {
      if (count >= open[most]) most = id;
    }
    without.insert(most);
  }
}

std::vector<LinkTests::Outcast> LinkTests::Outcasts() {
  std::vector<Outcast> outcasts;
  const std::set<WorkerId> before = std::exchange(outcasts_, {});
  if (broken_ == 0) return outcasts;
  struct Tally {
    int works = 0;
    int broken = 0;
    bool open = false;  // a test is under way whose result is not known
    Pair shown;
  };
  std::set<WorkerId>& out = outcasts_;
  for (;;) {
    std::map<WorkerId, Tally> in;
    std::map<WorkerId, Tally> from;
    for (const auto& [pair, link] : links_) {
      if (out.contains(pair.first) || out.contains(pair.second)) continue;
      for (const bool far : {true, false}) {
        Tally& tally = far ? in[pair.second] : from[pair.first];
        if (!link.known) {
          tally.open = true;
        } else if (link.error.empty()) {
          ++tally.works;
        } else if (!link.silent || !far) {
          // Silence says nothing of the far end, and more of the near one.
          tally.broken += link.silent ? 2 : 1;
          tally.shown = pair;
        }
      }
    }
    // Whether all of at least so many tests failed.
    const auto judged = [&](const std::pair<const WorkerId, Tally>& entry,
                            int least) {
      const Tally& tally = entry.second;
      return tally.works == 0 && tally.broken >= least &&
             (!tally.open || before.contains(entry.first));
    };
    // Nobody reaches the worst, of equals the one that came last. Who fails
    // with a single other may have met one that nobody reaches.
    const auto worst = [&](const std::map<WorkerId, Tally>& tallies,
                           int least) {
      const std::pair<const WorkerId, Tally>* worst = nullptr;
      for (const auto& entry : tallies) {
        if (!judged(entry, least)) continue;
        if (worst == nullptr || entry.second.broken >= worst->second.broken) {
          worst = &entry;
        }
      }
      return worst;
    };
    const auto* found = worst(in, 1);
    const bool reaches_nobody = found == nullptr;
    if (reaches_nobody) found = worst(from, 2);
    if (found == nullptr) return outcasts;
    // Of many, those that many others can't reach do not depend on each other.
    for (const auto& entry : reaches_nobody ? from : in) {
      const bool clear = workers_.size() > kMaxLinkPeers + 1 &&
                         judged(entry, static_cast<int>(kMaxLinkPeers / 2));
      if (!clear && &entry != found) continue;
      const Pair& shown = entry.second.shown;
      outcasts.push_back({.worker = entry.first,
                          .from = shown.first,
                          .to = shown.second,
                          .reaches_nobody = reaches_nobody,
                          .again = links_.at(shown).again});
      out.insert(entry.first);
    }
  }
}

}  // namespace sluice
