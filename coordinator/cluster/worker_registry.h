#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/machine_profile.h"
#include "coordinator/cluster/absent_workers.h"
#include "coordinator/cluster/cluster_options.h"
#include "coordinator/cluster/links/link_facts.h"
#include "coordinator/cluster/links/link_tests.h"
#include "coordinator/cluster/model_identity.h"
#include "coordinator/cluster/worker_stream.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {

// The state of an attached worker that does not depend on plans.
struct AttachedWorker {
  std::shared_ptr<WorkerStream> stream;
  PeerPlace place;
  bool registered = false;
  bool resolving = false;  // its Register waits for a name
  v1::Register info;
  ModelContent content;     // of its copy of the model, as far as known
  bool same_model = false;  // its copy is the one that counts; else it waits
  std::vector<std::string> addresses;  // of its link's host, if that is a name
  bool measuring = false;  // its profile is to come; until then it waits
  std::optional<MachineProfile> profile;
  absl::Duration silent;  // time since its last message; see PassTime
  v1::Heartbeat heartbeat;
  bool drained = false;  // an operator has plans do without it
  bool leaving = false;  // it is being stopped
  bool newcomer = true;  // no plan has lost a worker since it came
  std::string failure;   // why no plan can use it, or ""
  std::set<v1::LinkTransport> failed_links;  // since a worker last came
  // Links to these were requested, and planning waits for them until then.
  absl::flat_hash_set<std::string> links_asked;
  absl::Duration links_due;
  int links_owed = 0;  // answers that are due, one for each request

  // Whether plans may know of it.
  bool known() const { return registered && same_model && !measuring; }
  // Whether plans are to do without it.
  bool withdrawn() const { return drained || leaving; }
  // The hashed share of its model's files.
  double hashed_share() const;
};

// The attached workers: checks registrations and whose copy of the model
// counts, notices silent workers, knows their links' rates, and remembers which
// workers plans exclude. Confined to the dispatcher's thread.
//
// A worker that must go is only noted (see TakeDoomed), so that none disappears
// while an event is handled.
class WorkerRegistry {
 public:
  // `options` must outlive the registry.
  explicit WorkerRegistry(const ClusterOptions& options);

  void Open(WorkerId id, std::shared_ptr<WorkerStream> stream, PeerPlace place);
  void Register(WorkerId id, const v1::Register& info);
  void OnModelContent(WorkerId id, const v1::ModelContent& said);
  // Takes the profile of a worker that measured its machine.
  void OnMeasured(WorkerId id, const v1::Measured& measured);
  void OnLinksMeasured(WorkerId id, const v1::LinksMeasured& measured);

  // A name to be looked up (ResolveHost). OnResolved takes the answer, until
  // which the worker is not registered.
  struct Lookup {
    WorkerId worker;
    std::string host;
  };
  std::vector<Lookup> TakeLookups() { return std::exchange(lookups_, {}); }
  void OnResolved(WorkerId id,
                  const absl::StatusOr<std::vector<std::string>>& addresses);

  // Adds time in which this process ran; dooms workers silent for too long.
  void PassTime(absl::Duration passed);
  // Lets workers join whose copy of the model turned out to be the one that
  // counts.
  void CompareModels();
  // Dooms workers whose copy counted only for unfinished jobs that began with
  // it, once these have ended.
  void DropFormerModel();

  const std::map<WorkerId, AttachedWorker>& workers() const { return workers_; }
  // Returns null if the worker is gone.
  AttachedWorker* Find(WorkerId id);
  AttachedWorker& at(WorkerId id) { return workers_.at(id); }
  const AttachedWorker& at(WorkerId id) const { return workers_.at(id); }
  const std::string& name(WorkerId id) const { return at(id).info.name(); }
  // Without those that measure, or are to go.
  int32_t num_registered() const;
  // Whether these are all here still.
  bool AllRegistered(const std::vector<WorkerId>& ids) const;

  // Sends a message, unless the worker is gone; dooms it if its queue is full.
  void Send(WorkerId id, v1::CoordinatorMessage message);
  // Notes that the worker is to be removed for this reason.
  void Doom(WorkerId id, const absl::Status& reason);
  std::vector<std::pair<WorkerId, absl::Status>> TakeDoomed() {
    return std::exchange(doomed_, {});
  }
  bool any_doomed() const { return !doomed_.empty(); }
  // Ends the stream and returns the worker; nullopt if refused before.
  std::optional<AttachedWorker> Remove(WorkerId id, const absl::Status& reason);

  // Whether workers that plans may use have joined since the last call.
  bool TakeJoined() { return std::exchange(joined_, false); }
  // The time at which a worker last came or went.
  absl::Duration changed_at() const { return changed_at_; }
  // How often workers that plans may use have come, any registered ones gone,
  // or others been left out.
  int64_t changes() const { return changes_; }

  // Whether the links between these workers are known, or will not be: requests
  // measurements of the missing ones.
  bool KnowsLinks(const std::vector<WorkerId>& workers);
  // As the workers registered. REQUIRES: all have profiles.
  std::vector<MachineProfile> Profiles(
      const std::vector<WorkerId>& workers) const;
  // The same for plans: after SeparateMachines for all that plans may use.
  std::vector<MachineProfile> PlanningProfiles(
      const std::vector<WorkerId>& workers) const;

  // Has plans do without the worker of that name, if there is one, or use it
  // again.
  void Drain(const std::string& name, bool drained);
  // Takes a worker's Leave.
  void OnLeave(WorkerId id);

  // -- Tests of links (ClusterOptions::test_links).

  // Has links tested that are not known, and leaves those out who turn out to
  // be unreachable. Must be called regularly.
  void TestLinks();
  void OnLinksTested(WorkerId id, const v1::LinksReached& answer);
  const LinkTests& link_tests() const { return link_tests_; }
  // Whether plans should wait for tests that are under way.
  bool TestingLinks() const {
    return link_tests_.Testing(options_.clock->Monotonic());
  }
  // Takes what was found out otherwise: why a link could not be opened, or "".
  void FoundLink(WorkerId from, WorkerId to, const std::string& error);
  // Returns "worker 'a' can't open a link to 'b' at b:7072: no route".
  std::string UnlinkedText(WorkerId from, WorkerId to,
                           const std::string& error) const;
  void HastenLinkTests(const std::vector<WorkerId>& workers) {
    link_tests_.Hasten(workers);
  }

  // Says what a worker that fetches the model is to load, and from whom; does
  // nothing for others.
  void TellModel(WorkerId id, v1::AssignStage* assign) const;
  // Sets the copy of the model with which steps are computed from now on; a new
  // one is to be kept with the jobs.
  void BeginModel(const ModelContent& content);
  std::optional<ModelContent> TakeBegunModel() {
    return std::exchange(begun_model_, std::nullopt);
  }

  // Makes plans exclude the worker for a while.
  void LeaveOut(WorkerId id, const std::string& why);
  // Returns null if plans may use the worker. Whoever can't be linked to the
  // others is left out, too, until it can.
  const LeftOut::Entry* OutOf(const AttachedWorker& worker) const;
  // The time until plans may use it, as far as it is known; 0 if they may now.
  absl::Duration OutFor(const AttachedWorker& worker) const;
  bool CannotBeLinked(const AttachedWorker& worker) const {
    return outcasts_.contains(KeyOf(worker.info));
  }
  bool any_left_out() const { return !left_out_.empty() || !outcasts_.empty(); }
  void Pardon(WorkerId id);
  // Take whether a plan's link could be opened; the worker to blame for a
  // failure is left out, and the links of all are tested again.
  void BlameLink(WorkerId from, WorkerId to, const std::string& why);
  void OnReached(WorkerId from, WorkerId to);
  // Called when a plan lost a worker: no present worker is a newcomer any more.
  void EndNewcomers();

  // "; worker 'w2' is checking its weights: 43 %", or another reason why a
  // worker that is here can't be planned for; "" if there is none.
  std::string CheckingDetail() const;
  // The last event of a worker that is gone, for people.
  std::string LastAbsent() const { return absent_.newest(); }
  void DescribeAbsent(v1::ClusterState* state) {
    absent_.Describe(options_.clock->Monotonic(), state);
  }

 private:
  static std::string KeyOf(const v1::Register& info);
  void JudgeLinks();
  absl::Status CheckRegister(const v1::Register& info) const;
  // Checks whether others can reach the worker.
  absl::Status CheckPlace(const AttachedWorker& worker,
                          const v1::Register& info) const;
  // Checks that the worker's model content is valid, and does not differ from
  // the copy that counts, as far as both are known.
  absl::Status CheckContent(const v1::Register& info,
                            const v1::ModelContent& said,
                            ModelContent* content) const;
  // Compares the copy by ModelIdentity::Check.
  absl::Status CompareModel(const v1::Register& info,
                            const ModelContent& content) const;
  void Changed();
  // The copy of the first worker whose own one counts, if there is one.
  std::optional<ModelIdentity::Copy> FirstCopy() const;
  // Lets workers that fetch the model take part once it is known which one
  // counts, and has those register anew for which that has changed.
  void CompareFetchers();
  static absl::Status CheckProfile(const std::string& name,
                                   const std::string& profile_json);
  static void TakeProfile(AttachedWorker* worker);
  // "; 2 workers measure their machines (47 %)"; "" if none does.
  std::string MeasuringDetail() const;
  // Called when plans may use a worker's copy.
  void Join(AttachedWorker& worker);
  // Removes the worker at once.
  void Refuse(WorkerId id, const absl::Status& reason);

  const ClusterOptions& options_;
  ModelIdentity identity_;
  std::optional<ModelContent> begun_model_;
  std::map<WorkerId, AttachedWorker> workers_;
  std::vector<std::pair<WorkerId, absl::Status>> doomed_;
  std::vector<Lookup> lookups_;
  bool joined_ = false;
  absl::Duration changed_at_;
  int64_t changes_ = 0;
  absl::Duration fetchers_compared_at_ = -absl::InfiniteDuration();
  LeftOut left_out_;
  LinkBlame link_blame_;
  LinkTests link_tests_;
  int64_t judged_ = 0;  // the state of link_tests_ that outcasts_ is of
  // Who can't be linked to others, by KeyOf.
  absl::flat_hash_map<std::string, LeftOut::Entry> outcasts_;
  AbsentWorkers absent_;
};

}  // namespace sluice
