#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/cluster/worker_stream.h"

namespace sluice {

// What tests have shown of links between workers: whether each can open one to
// another. A link has a direction, and may work in one of two.
//
// Each worker tests links to those that follow it in a ring, all in a small
// cluster. Links that can't be opened are tested again and again, less often
// each time; those that can are taken to work until a plan finds otherwise
// (Recheck). Times are of a monotonic clock. Thread-compatible; sends nothing.
class LinkTests {
 public:
  // To be sent to `from`, whose answer has a result for each of `to`, in order.
  struct Question {
    int64_t number = 0;  // below 0, so that it is no plan's epoch
    WorkerId from;
    std::vector<WorkerId> to;
  };
  // A worker that plans do better without.
  struct Outcast {
    WorkerId worker;
    // The tested link that shows it best.
    WorkerId from;
    WorkerId to;
    bool reaches_nobody = false;  // else nobody reaches it
    absl::Duration again;         // when a link of it is tested again
  };

  // Returns the questions that are due now. `workers` are all that there are,
  // ascending; what is known of others is forgotten.
  std::vector<Question> Ask(const std::vector<WorkerId>& workers,
                            absl::Duration now);
  // Takes an answer: for each of the question's `to`, why the link could not be
  // opened, or "". Returns false if it is of no open question to this worker.
  bool OnAnswer(int64_t number, WorkerId from,
                const std::vector<std::string>& errors, absl::Duration now);
  // Forgets a worker that is gone.
  void Remove(WorkerId id);
  // Takes what a plan found out about a link between two of the last Ask.
  void Found(WorkerId from, WorkerId to, const std::string& error,
             absl::Duration now);
  // Has all links between these workers tested again before they are used.
  void Recheck(const std::vector<WorkerId>& workers);
  // Has broken links between these workers tested again soon, as they are
  // needed.
  void Hasten(const std::vector<WorkerId>& workers);

  // Whether the link was tested and could not be opened; why, else "".
  bool Broken(WorkerId from, WorkerId to) const;
  std::string Why(WorkerId from, WorkerId to) const;
  bool any_broken() const { return broken_ > 0; }
  // Whether the link was tested and could be opened.
  bool Works(WorkerId from, WorkerId to) const;
  // Goes up with everything that is found out or forgotten.
  int64_t version() const { return version_; }
  // Whether first tests are under way that a plan should wait for: not for ever
  // where workers come and go all the time.
  bool Testing(absl::Duration now) const;
  // The fewest workers without whom no first test is open between the others.
  std::set<WorkerId> Untested() const;
  // Those whom nobody else can reach, and those who reach nobody, each judged
  // by the others who remain. Who was none before is none as long as tests of
  // its links are open.
  std::vector<Outcast> Outcasts();

 private:
  struct Link {
    bool known = false;
    std::string error;    // why it can't be opened; "": it works
    bool silent = false;  // the tester never answered
    int failures = 0;     // in a row
    int64_t asked = 0;    // the open question, or 0
    absl::Duration tested_at;
    absl::Duration again;  // when a broken one is tested again
  };
  struct Open {
    Question question;
    absl::Duration due;
  };
  using Pair = std::pair<WorkerId, WorkerId>;

  void Forget(const std::vector<WorkerId>& workers);
  void Set(const Pair& pair, Link* link, const std::string& error,
           absl::Duration now);
  // Takes silence for an answer.
  void EndOverdue(absl::Duration now);

  std::map<Pair, Link> links_;
  std::map<int64_t, Open> open_;
  std::vector<WorkerId> workers_;  // of the last Ask
  std::set<WorkerId> outcasts_;    // of the last verdict
  int64_t last_number_ = 0;
  int64_t version_ = 0;
  int broken_ = 0;       // links
  int first_tests_ = 0;  // open ones
  std::optional<absl::Duration> testing_since_;
  absl::Duration look_at_;  // nothing is due before
};

}  // namespace sluice
