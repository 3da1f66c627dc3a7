#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "common/threads/executor.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "worker/link/link.h"

namespace sluice {

// Opens links to other workers, many at a time, and measures them (see
// MeasureLink), one after the other, on threads of its own. Thread-safe.
class LinkSurvey {
 public:
  struct Peer {
    std::string name;
    std::string address;  // of its LinkService
    bool tcp = false;     // measured by TCP, if it can be
  };
  struct Measured {
    std::string peer;  // its name
    absl::StatusOr<LinkProfile> link;
  };
  using Done = std::function<void(std::vector<Measured>)>;
  // Gets, for each peer, whether a link to it can be opened.
  using Reached = std::function<void(std::vector<absl::Status>)>;

  // `links` must outlive the survey.
  LinkSurvey(LinkFactory* links, double seconds_each)
      : links_(links), seconds_each_(seconds_each) {}
  ~LinkSurvey();
  LinkSurvey(const LinkSurvey&) = delete;
  LinkSurvey& operator=(const LinkSurvey&) = delete;

  // Begins to measure after earlier tasks; `done` is called on the survey's
  // thread, with a result for each peer, unless Cancel() is first. Never waits.
  void Start(std::vector<Peer> peers, Done done);
  // Begins to open links at once, and closes them; `done` is called on one of
  // the survey's threads when all have answered, or not within the links'
  // connect_timeout, unless Cancel() is first. Never waits.
  void Reach(std::vector<Peer> peers, Reached done);
  // Breaks off what runs, and drops what waits. Never waits.
  void Cancel();

 private:
  struct Task {
    std::vector<Peer> peers;
    Done done;
  };
  // Peers that are reached together.
  struct Batch;

  void Run();
  absl::StatusOr<LinkProfile> Measure(const Peer& peer,
                                      const std::atomic<bool>& cancelled);

  LinkFactory* const links_;
  const double seconds_each_;
  Mutex mu_;
  CondVar changed_;
  std::vector<Task> tasks_ ABSL_GUARDED_BY(mu_);
  // The flag of the running task, which Cancel sets.
  std::shared_ptr<std::atomic<bool>> cancelled_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<LinkSender> sender_ ABSL_GUARDED_BY(mu_);  // in use
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  // The flag of what is being reached, which Cancel sets.
  std::shared_ptr<std::atomic<bool>> reach_cancelled_ ABSL_GUARDED_BY(mu_) =
      std::make_shared<std::atomic<bool>>(false);
  std::unique_ptr<Executor> reach_ ABSL_GUARDED_BY(mu_);
  Thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
