#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/machine_profile.h"
#include "coordinator/cluster/absent_workers.h"
#include "coordinator/cluster/cluster_options.h"
#include "coordinator/cluster/links/link_facts.h"
#include "coordinator/cluster/model_identity.h"
#include "coordinator/cluster/worker_stream.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {

// What is known of an attached worker, whatever plan it is in.
struct AttachedWorker {
  std::shared_ptr<WorkerStream> stream;
  PeerPlace place;
  bool registered = false;
  bool resolving = false;  // its Register waits for a name
  v1::Register info;
  ModelContent content;     // of its copy of the model, as far as it is known
  bool same_model = false;  // it is the one that counts; else it has to wait
  std::vector<std::string> addresses;  // of its link's host, if that is a name
  std::optional<MachineProfile> profile;
  absl::Duration silent;  // time in which it was not heard, see PassTime
  v1::Heartbeat heartbeat;
  bool newcomer = true;  // no plan has lost a worker since it came
  std::string failure;   // why no plan can have it, as far as is known, or ""
  bool nccl_failed = false;  // since a worker last came
  // Links to these were asked for, and are waited for until then.
  absl::flat_hash_set<std::string> links_asked;
  absl::Duration links_due;
  int links_owed = 0;  // answers; each is to all that was asked at once

  // How much of its model's files it has hashed.
  double hashed_share() const;
};

// The attached workers: checks who registers and whose copy of the model
// counts, notices who is silent, knows what their links carry, and remembers
// who is to be left out of plans. Confined to the dispatcher's thread.
//
// A worker that is to go is only noted (see TakeDoomed), so that nobody is gone
// before an event is dealt with.
class WorkerRegistry {
 public:
  // `options` must outlive the registry.
  explicit WorkerRegistry(const ClusterOptions& options);

  void Open(WorkerId id, std::shared_ptr<WorkerStream> stream, PeerPlace place);
  void Register(WorkerId id, const v1::Register& info);
  void OnModelContent(WorkerId id, const v1::ModelContent& said);
  void OnLinksMeasured(WorkerId id, const v1::LinksMeasured& measured);

  // Names to be looked up (ResolveHost), each answered by OnResolved, until
  // which the worker is not registered.
  struct Lookup {
    WorkerId worker;
    std::string host;
  };
  std::vector<Lookup> TakeLookups() { return std::exchange(lookups_, {}); }
  void OnResolved(WorkerId id,
                  const absl::StatusOr<std::vector<std::string>>& addresses);

  // Time in which this process ran: dooms who is silent for too long.
  void PassTime(absl::Duration passed);
  // Lets workers join whose copy of the model turned out to be the one that
  // counts.
  void CompareModels();
  // Dooms workers whose copy counted while jobs were unfinished that began with
  // it, and counts no more.
  void DropFormerModel();

  const std::map<WorkerId, AttachedWorker>& workers() const { return workers_; }
  // Null if it is gone.
  AttachedWorker* Find(WorkerId id);
  AttachedWorker& at(WorkerId id) { return workers_.at(id); }
  const AttachedWorker& at(WorkerId id) const { return workers_.at(id); }
  const std::string& name(WorkerId id) const { return at(id).info.name(); }

  // Sends a message, unless it is gone; dooms one that does not take it.
  void Send(WorkerId id, v1::CoordinatorMessage message);
  // The worker is to be removed, for this reason.
  void Doom(WorkerId id, const absl::Status& reason);
  std::vector<std::pair<WorkerId, absl::Status>> TakeDoomed() {
    return std::exchange(doomed_, {});
  }
  bool any_doomed() const { return !doomed_.empty(); }
  // Ends its stream; what was known of it, nullopt if it was refused before.
  std::optional<AttachedWorker> Remove(WorkerId id, const absl::Status& reason);

  // Whether workers joined since the last call that plans may have.
  bool TakeJoined() { return std::exchange(joined_, false); }
  // When a worker last came or went.
  absl::Duration changed_at() const { return changed_at_; }

  // Whether the links between these are known, as far as they will be: asks
  // for those that are not.
  bool KnowsLinks(const std::vector<WorkerId>& workers);
  // REQUIRES: all have profiles.
  std::vector<MachineProfile> Profiles(
      const std::vector<WorkerId>& workers) const;

  // The copy of the model with which steps are computed from now on, if it is
  // another one than before; to be kept with the jobs.
  void BeginModel(const ModelContent& content);
  std::optional<ModelContent> TakeBegunModel() {
    return std::exchange(begun_model_, std::nullopt);
  }

  // Plans do without the worker for a while.
  void LeaveOut(WorkerId id, const std::string& why);
  // Null if plans may have it.
  const LeftOut::Entry* OutOf(const AttachedWorker& worker) const;
  bool any_left_out() const { return !left_out_.empty(); }
  void Pardon(WorkerId id);
  // Leaves out who is to blame for a link that could not be opened; and who was
  // reached.
  void BlameLink(WorkerId from, WorkerId to, const std::string& why);
  void OnReached(WorkerId from, WorkerId to);
  // A plan lost a worker: all that are here now have seen it.
  void EndNewcomers();

  // "; worker 'w2' is checking its weights: 43 %", or "" if none is.
  std::string CheckingDetail() const;
  // What happened last to a worker that is gone, for people.
  std::string LastAbsent() const { return absent_.newest(); }
  void DescribeAbsent(v1::ClusterState* state) {
    absent_.Describe(options_.clock->Monotonic(), state);
  }

 private:
  absl::Status CheckRegister(const v1::Register& info) const;
  // Whether others can reach it.
  absl::Status CheckPlace(const AttachedWorker& worker,
                          const v1::Register& info) const;
  // OK if what it said of its model makes sense, and does not differ from the
  // copy that counts as far as both are known.
  absl::Status CheckContent(const v1::Register& info,
                            const v1::ModelContent& said,
                            ModelContent* content) const;
  // As ModelIdentity::Check.
  absl::Status CompareModel(const v1::Register& info,
                            const ModelContent& content) const;
  // It is gone at once.
  void Refuse(WorkerId id, const absl::Status& reason);

  const ClusterOptions& options_;
  ModelIdentity identity_;
  std::optional<ModelContent> begun_model_;
  std::map<WorkerId, AttachedWorker> workers_;
  std::vector<std::pair<WorkerId, absl::Status>> doomed_;
  std::vector<Lookup> lookups_;
  bool joined_ = false;
  absl::Duration changed_at_;
  LeftOut left_out_;
  LinkBlame link_blame_;
  AbsentWorkers absent_;
};

}  // namespace sluice
