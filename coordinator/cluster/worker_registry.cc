#include "coordinator/cluster/worker_registry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/codec/profile_json.h"
#include "common/host/logging.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "coordinator/cluster/links/link_facts.h"
#include "coordinator/cluster/worker_facts.h"

namespace sluice {
namespace {

constexpr size_t kMaxErrorBytes = 1024;
constexpr absl::Duration kCompareInterval = absl::Seconds(1);
// More workers with the model than these are not told to one that fetches it.
constexpr int kMaxSources = 16;

}  // namespace

// A worker that returns with another address was restarted, and is tried again.
std::string WorkerRegistry::KeyOf(const v1::Register& info) {
  return absl::StrCat(info.name(), " ", info.link_address());
}

double AttachedWorker::hashed_share() const {
  const auto all = static_cast<double>(heartbeat.bytes_to_hash());
  const auto done = static_cast<double>(heartbeat.hashed_bytes());
  return all > 0 ? std::min(1.0, done / all) : 0;
}

WorkerRegistry::WorkerRegistry(const ClusterOptions& options)
    : options_(options),
      identity_(options.model),
      changed_at_(options.clock->Monotonic()),
      left_out_(WorkerTimeouts::kFirstLeftOut, WorkerTimeouts::kMaxLeftOut) {}

void WorkerRegistry::Open(WorkerId id, std::shared_ptr<WorkerStream> stream,
                          PeerPlace place) {
  AttachedWorker& worker = workers_[id];
  worker.stream = std::move(stream);
  worker.place = std::move(place);
}

int32_t WorkerRegistry::num_registered() const {
  return static_cast<int32_t>(
      std::count_if(workers_.begin(), workers_.end(), [](const auto& worker) {
        return worker.second.registered && !worker.second.measuring &&
               !worker.second.withdrawn();
      }));
}

bool WorkerRegistry::AllRegistered(const std::vector<WorkerId>& ids) const {
  return std::all_of(ids.begin(), ids.end(), [&](WorkerId id) {
    const auto it = workers_.find(id);
    return it != workers_.end() && it->second.registered;
  });
}

AttachedWorker* WorkerRegistry::Find(WorkerId id) {
  const auto it = workers_.find(id);
  return it == workers_.end() ? nullptr : &it->second;
}

void WorkerRegistry::Send(WorkerId id, v1::CoordinatorMessage message) {
  const AttachedWorker* const worker = Find(id);
  if (worker == nullptr || worker->stream->Send(std::move(message))) return;
  Doom(id, absl::UnavailableError("the worker does not take messages"));
}

void WorkerRegistry::Doom(WorkerId id, const absl::Status& reason) {
  doomed_.emplace_back(id, reason);
}

std::optional<AttachedWorker> WorkerRegistry::Remove(
    WorkerId id, const absl::Status& reason) {
  const auto it = workers_.find(id);
  if (it == workers_.end()) return std::nullopt;
  AttachedWorker worker = std::move(it->second);
  workers_.erase(it);
  link_tests_.Remove(id);
  worker.stream->Break(reason);
  if (!worker.registered) return worker;
  // A worker that left on purpose is no reason for a warning.
  Log(absl::IsCancelled(reason) ? LogLevel::kInfo : LogLevel::kWarning,
      absl::StrCat("worker gone name=", worker.info.name(), " id=", id.value(),
                   ": ", reason.ToString()));
  Changed();
  const std::string why = ClipText(std::string(reason.message()));
  if (absl::IsCancelled(reason)) {
    absent_.Left(worker.info.name(), why, changed_at_);
  } else {
    absent_.Lost(worker.info.name(), why, changed_at_);
  }
  return worker;
}

void WorkerRegistry::Changed() {
  changed_at_ = options_.clock->Monotonic();
  ++changes_;
}

void WorkerRegistry::PassTime(absl::Duration passed) {
  const absl::Duration timeout = options_.timeouts.heartbeat_timeout;
  for (auto& [id, worker] : workers_) {
    if (worker.resolving) continue;  // it waits for the lookup
    worker.silent += passed;
    if (worker.silent <= timeout) continue;
    Doom(id, absl::DeadlineExceededError(absl::StrCat(
                 "no heartbeat for ", absl::FormatDuration(timeout))));
  }
}

// -- Registering.

absl::Status WorkerRegistry::CheckRegister(const v1::Register& info) const {
  if (info.name().empty() || info.name().size() > kMaxWorkerNameBytes) {
    return InvalidArgument("a worker's name must have 1 to ",
                           kMaxWorkerNameBytes, " bytes, this one has ",
                           info.name().size());
  }
  if (info.link_address().empty()) {
    return InvalidArgument("worker '", info.name(), "' gave no link address");
  }
  for (const std::string* text :
       {&info.link_address(), &info.model_fingerprint(), &info.device(),
        &info.version(), &info.metrics_address(), &info.model_dir(),
        &info.gpu_uuid()}) {
    if (text->size() > kMaxWorkerTextBytes) {
      return InvalidArgument("worker '", info.name(),
                             "' registered with a text of ", text->size(),
                             " bytes; the most is ", kMaxWorkerTextBytes);
    }
  }
  SLUICE_RETURN_IF_ERROR(CheckProfile(info.name(), info.profile_json()));
  std::string fingerprint = options_.model_fingerprint;
  std::string whose = "the coordinator";
  for (const auto& [id, other] : workers_) {
    if (!other.registered) continue;
    if (other.info.name() == info.name()) {
      return absl::AlreadyExistsError(absl::StrCat(
          "a worker named '", info.name(),
          "' is attached already; give each worker a name of its own"));
    }
    if (other.info.version() != info.version()) {
      return FailedPrecondition("worker '", info.name(), "' has version ",
                                info.version(), ", but worker '",
                                other.info.name(), "' has ",
                                other.info.version(), "; all must be the same");
    }
    if (fingerprint.empty() && !other.info.fetches_model()) {
      fingerprint = other.info.model_fingerprint();
      whose = absl::StrCat("worker '", other.info.name(), "' in ",
                           other.info.model_dir());
    }
  }
  if (info.fetches_model()) {
    if (info.model_fingerprint().empty() && !info.has_model_content()) {
      return absl::OkStatus();
    }
    return InvalidArgument("worker '", info.name(),
                           "' has a copy of the model and fetches it");
  }
  ModelContent content;
  SLUICE_RETURN_IF_ERROR(CheckContent(info, info.model_content(), &content));
  // Copies with other file headers may agree in names and sizes.
  if (info.model_fingerprint().empty() ||
      (!fingerprint.empty() && info.model_fingerprint() != fingerprint)) {
    return FailedPrecondition(
        "worker '", info.name(), "' has another model in ", info.model_dir(),
        " than ", whose, "; copy the model directory again");
  }
  return absl::OkStatus();
}

absl::Status WorkerRegistry::CheckProfile(const std::string& name,
                                          const std::string& profile_json) {
  if (profile_json.size() <= kMaxProfileBytes) return absl::OkStatus();
  return InvalidArgument("worker '", name, "' has a profile of ",
                         profile_json.size(), " bytes; the most is ",
                         kMaxProfileBytes);
}

void WorkerRegistry::TakeProfile(AttachedWorker* worker) {
  worker->profile = ProfileOf(worker->info);
  if (!worker->profile) return;
  // Links that the user wrote into the profile need no measuring.
  for (const LinkProfile& link : worker->profile->links) {
    if (!link.peer.empty()) worker->links_asked.insert(link.peer);
  }
}

void WorkerRegistry::OnMeasured(WorkerId id, const v1::Measured& measured) {
  AttachedWorker& worker = at(id);
  if (!worker.measuring) return;
  if (absl::Status status =
          CheckProfile(worker.info.name(), measured.profile_json());
      !status.ok()) {
    Doom(id, status);
    return;
  }
  worker.measuring = false;
  worker.info.set_profile_json(measured.profile_json());
  TakeProfile(&worker);
  joined_ = joined_ || worker.same_model;
  Changed();
}

absl::Status WorkerRegistry::CheckPlace(const AttachedWorker& worker,
                                        const v1::Register& info) const {
  SLUICE_RETURN_IF_ERROR(CheckLinkAddress(info.name(), info.link_address(),
                                          worker.addresses, worker.place));
  // Loopback addresses work only if all workers are on one machine.
  const auto elsewhere = [](const AttachedWorker& w) {
    return w.place.kind == PeerPlace::kElsewhere;
  };
  const bool mine = IsLoopbackLink(info.link_address(), worker.addresses);
  for (const auto& [id, other] : workers_) {
    if (!other.registered) continue;
    const bool its = IsLoopbackLink(other.info.link_address(), other.addresses);
    if (!(mine && elsewhere(other)) && !(its && elsewhere(worker))) continue;
    const v1::Register& near = mine ? info : other.info;
    const v1::Register& far = mine ? other.info : info;
    return InvalidArgument(
        "worker '", info.name(), "' can't work with '", other.info.name(),
        "': they are on two machines, and '", far.name(), "' can't reach '",
        near.name(), "' at ", near.link_address(), "; as for '", near.name(),
        "', ", AdvertiseRemedy(PeerPlace()));
  }
  return absl::OkStatus();
}

void WorkerRegistry::Refuse(WorkerId id, const absl::Status& reason) {
  const AttachedWorker& worker = at(id);
  const std::string name = ClipText(worker.info.name(), kMaxWorkerNameBytes);
  // A worker that keeps trying is logged only once.
  if (absent_.Refused(name, std::string(reason.message()),
                      options_.clock->Monotonic())) {
    LogWarning("worker refused: ", reason.message());
  }
  worker.stream->Break(reason);
  workers_.erase(id);
  link_tests_.Remove(id);
  Doom(id, reason);
}

void WorkerRegistry::OnResolved(
    WorkerId id, const absl::StatusOr<std::vector<std::string>>& addresses) {
  AttachedWorker* const worker = Find(id);
  if (worker == nullptr || !worker->resolving) return;
  worker->resolving = false;
  worker->silent = absl::ZeroDuration();
  if (addresses.ok()) {
    worker->addresses = *addresses;
    Register(id, v1::Register(worker->info));
    return;
  }
  Refuse(id, InvalidArgument("worker '", worker->info.name(),
                             "' says that others reach it at ",
                             worker->info.link_address(), ", but ",
                             addresses.status().message(),
                             " on the coordinator's machine; ",
                             AdvertiseRemedy(worker->place)));
}

void WorkerRegistry::Register(WorkerId id, const v1::Register& info) {
  AttachedWorker& worker = at(id);
  worker.info = info;
  if (absl::Status status = CheckRegister(info); !status.ok()) {
    Refuse(id, status);
    return;
  }
  if (options_.look_up_names && worker.addresses.empty() &&
      worker.place.kind != PeerPlace::kUnknown) {
    const absl::StatusOr<std::string> host = HostOf(info.link_address());
    if (host.ok() && !IsNumericHost(*host)) {
      worker.resolving = true;
      lookups_.push_back({id, *host});
      return;
    }
  }
  if (absl::Status status = CheckPlace(worker, info); !status.ok()) {
    Refuse(id, status);
    return;
  }
  worker.registered = true;
  worker.drained = info.drained();
  worker.content = *ContentOf(info.model_content());
  worker.info.clear_model_content();
  absent_.Present(info.name());
  link_blame_.Forget(info.name());
  worker.measuring = info.measuring();
  TakeProfile(&worker);
  v1::CoordinatorMessage answer;
  answer.mutable_registered()->set_worker_id(id.value());
  answer.mutable_registered()->set_heartbeat_interval_ms(
      absl::ToInt64Milliseconds(options_.timeouts.heartbeat_interval));
  worker.stream->Accept();
  LogInfo(LogWorker(info.name()), " registered id=", id.value(),
          " link=", info.link_address(), " device=", info.device());
  CompareModels();
  Send(id, std::move(answer));
}

// -- Withdrawing.

void WorkerRegistry::Drain(const std::string& name, bool drained) {
  for (auto& [id, worker] : workers_) {
    if (!worker.registered || worker.info.name() != name ||
        worker.drained == drained) {
      continue;
    }
    LogInfo(LogWorker(name), " id=", id.value(),
            drained ? " is drained" : " is no longer drained");
    worker.drained = drained;
    Changed();
    v1::CoordinatorMessage message;
    message.mutable_drain()->set_drained(drained);
    Send(id, std::move(message));
  }
}

void WorkerRegistry::OnLeave(WorkerId id) {
  AttachedWorker& worker = at(id);
  if (std::exchange(worker.leaving, true)) return;
  LogInfo(LogWorker(worker.info.name()), " id=", id.value(),
          " is being stopped");
  Changed();
}

// -- Whose copy of the model counts.

absl::Status WorkerRegistry::CheckContent(const v1::Register& info,
                                          const v1::ModelContent& said,
                                          ModelContent* content) const {
  if (!said.error().empty()) {
    return FailedPrecondition(
        "worker '", info.name(), "' can't read its model: ",
        absl::string_view(said.error()).substr(0, kMaxErrorBytes));
  }
  absl::StatusOr<ModelContent> parsed = ContentOf(said);
  if (!parsed.ok()) {
    return Annotate(parsed.status(),
                    absl::StrCat("worker '", info.name(), "'"));
  }
  *content = *std::move(parsed);
  const absl::Status same = CompareModel(info, *content);
  return absl::IsFailedPrecondition(same) ? same : absl::OkStatus();
}

absl::Status WorkerRegistry::CompareModel(const v1::Register& info,
                                          const ModelContent& content) const {
  const std::optional<ModelIdentity::Copy> first = FirstCopy();
  return identity_.Check({info.name(), info.model_dir(), content},
                         first ? &*first : nullptr);
}

std::optional<ModelIdentity::Copy> WorkerRegistry::FirstCopy() const {
  for (const auto& [id, other] : workers_) {
    if (!other.same_model || other.info.fetches_model()) continue;
    return ModelIdentity::Copy{other.info.name(), other.info.model_dir(),
                               other.content};
  }
  return std::nullopt;
}

void WorkerRegistry::OnModelContent(WorkerId id, const v1::ModelContent& said) {
  AttachedWorker& worker = at(id);
  if (worker.same_model) return;
  const absl::Status status = CheckContent(worker.info, said, &worker.content);
  if (!status.ok()) Refuse(id, status);
}

void WorkerRegistry::CompareModels() {
  std::vector<WorkerId> waiting;
  for (const auto& [id, worker] : workers_) {
    if (worker.registered && !worker.same_model &&
        !worker.info.fetches_model()) {
      waiting.push_back(id);
    }
  }
  for (const WorkerId id : waiting) {
    AttachedWorker& worker = at(id);
    const absl::Status status = CompareModel(worker.info, worker.content);
    if (absl::IsFailedPrecondition(status)) {
      Refuse(id, status);
    } else if (status.ok()) {
      Join(worker);
      // The former and the new copy must not be in one plan.
      DropFormerModel();
    }
  }
  CompareFetchers();
}

void WorkerRegistry::Join(AttachedWorker& worker) {
  worker.same_model = joined_ = true;
  fetchers_compared_at_ = -absl::InfiniteDuration();
  Changed();
  // All workers must be compared with the new copy.
  for (auto& [id, other] : workers_) {
    other.failure.clear();
    other.failed_links.clear();
  }
}

void WorkerRegistry::CompareFetchers() {
  const absl::Duration now = options_.clock->Monotonic();
  const bool waits =
      std::any_of(workers_.begin(), workers_.end(), [](const auto& worker) {
        return worker.second.info.fetches_model() && !worker.second.same_model;
      });
  if (!waits && now < fetchers_compared_at_ + kCompareInterval) return;
  fetchers_compared_at_ = now;
  const std::optional<ModelIdentity::Copy> first = FirstCopy();
  std::optional<ModelContent> counts;
  bool asked = false;
  for (auto& [id, worker] : workers_) {
    if (!worker.registered || !worker.info.fetches_model()) continue;
    if (!std::exchange(asked, true)) {
      counts = identity_.Counting(first ? &*first : nullptr);
    }
    if (!counts) continue;
    if (worker.same_model) {
      if (DifferenceOf(worker.content, *counts).empty()) continue;
      worker.same_model = false;
      Doom(id, FailedPrecondition("worker '", worker.info.name(),
                                  "' has fetched another model than the one ",
                                  "that counts now"));
    } else if (worker.content.files.empty()) {
      worker.content = *counts;
      Join(worker);
    }
  }
}

void WorkerRegistry::TellModel(WorkerId id, v1::AssignStage* assign) const {
  const AttachedWorker& worker = at(id);
  if (!worker.info.fetches_model()) return;
  v1::ModelSource* const model = assign->mutable_model();
  model->set_config(options_.model_config);
  for (const ModelContent::File& file : worker.content.files) {
    v1::ModelContent::File* const to = model->mutable_content()->add_files();
    to->set_name(file.name);
    to->set_bytes(file.bytes);
    to->set_hash(file.hash);
  }
  model->mutable_content()->set_copies(worker.content.copies);
  model->set_coordinator(identity_.HasOwn(worker.content));
  // Each worker begins with those behind it, so that all are asked.
  auto it = workers_.upper_bound(id);
  for (size_t i = 0; i < workers_.size(); ++i, ++it) {
    if (it == workers_.end()) it = workers_.begin();
    const AttachedWorker& other = it->second;
    if (it->first == id || !other.same_model ||
        !(other.content == worker.content)) {
      continue;
    }
    auto* const sources = other.info.fetches_model() ? model->mutable_fetchers()
                                                     : model->mutable_peers();
    if (sources->size() == kMaxSources) continue;
    *sources->Add() = other.info.link_address();
  }
}

void WorkerRegistry::DropFormerModel() {
  for (auto& [id, worker] : workers_) {
    if (!worker.same_model) continue;
    const absl::Status status = identity_.Check(
        {worker.info.name(), worker.info.model_dir(), worker.content}, nullptr);
    if (!absl::IsFailedPrecondition(status)) continue;
    worker.same_model = false;
    Doom(id, status);
  }
}

void WorkerRegistry::BeginModel(const ModelContent& content) {
  if (identity_.Begin(content)) begun_model_ = content;
}

std::string WorkerRegistry::MeasuringDetail() const {
  int measuring = 0;
  std::string name;
  double share = 1;
  bool measured_here = false;
  for (const auto& [id, worker] : workers_) {
    if (!worker.registered || !worker.measuring) continue;
    ++measuring;
    name = worker.info.name();
    if (worker.heartbeat.awaits_measurement()) continue;
    measured_here = true;
    share = std::min(share, worker.heartbeat.measured_share());
  }
  if (measuring == 0) return "";
  const std::string percent =
      measured_here ? absl::StrCat(" (", static_cast<int>(100 * share), " %)")
                    : "";
  return measuring == 1
             ? absl::StrCat("; worker '", name, "' measures its machine",
                            percent)
             : absl::StrCat("; ", measuring, " workers measure their machines",
                            percent);
}

std::string WorkerRegistry::CheckingDetail() const {
  if (std::string text = MeasuringDetail(); !text.empty()) return text;
  for (const auto& [id, worker] : workers_) {
    if (!worker.registered) continue;
    if (worker.drained) {
      return absl::StrCat("; worker '", worker.info.name(), "' is drained");
    }
    if (worker.same_model) continue;
    if (worker.info.fetches_model()) {
      if (identity_.has_own()) {
        return "; the coordinator is checking its weights";
      }
      return absl::StrCat("; worker '", worker.info.name(),
                          "' waits for another one that has the model");
    }
    if (worker.content.known()) {
      return "; the coordinator is checking its weights";
    }
    return absl::StrCat("; worker '", worker.info.name(),
                        "' is checking its weights: ",
                        static_cast<int>(100 * worker.hashed_share()), " %");
  }
  return "";
}

// -- Links' rates.

bool WorkerRegistry::KnowsLinks(const std::vector<WorkerId>& workers) {
  const absl::Duration wait = options_.timeouts.max_link_time;
  if (wait == absl::ZeroDuration()) return true;
  std::vector<const v1::Register*> infos;
  for (WorkerId id : workers) infos.push_back(&at(id).info);
  const absl::Duration now = options_.clock->Monotonic();
  for (const WorkerId from : workers) {
    for (const WorkerId to : workers) {
      // Measuring it would only take its time.
      if (link_tests_.Broken(from, to)) at(from).links_asked.insert(name(to));
    }
    if (!link_tests_.any_broken()) break;
  }
  bool known = true;
  for (size_t i = 0; i < workers.size(); ++i) {
    AttachedWorker& worker = at(workers[i]);
    v1::MeasureLinks ask = LinksToMeasure(infos, i, &worker.links_asked);
    if (ask.peers_size() > 0) {
      // One that owes an answer gets no more time because others came.
      if (worker.links_owed == 0) worker.links_due = now + wait;
      ++worker.links_owed;
      v1::CoordinatorMessage question;
      *question.mutable_measure_links() = std::move(ask);
      Send(workers[i], std::move(question));
    }
    known = known && worker.links_due <= now;
  }
  return known;
}

void WorkerRegistry::OnLinksMeasured(WorkerId id,
                                     const v1::LinksMeasured& measured) {
  AttachedWorker& worker = at(id);
  // Late answers are taken, too.
  if (worker.links_owed == 0 || !worker.profile) return;
  if (--worker.links_owed == 0) worker.links_due = absl::ZeroDuration();
  const std::string trouble =
      AddMeasuredLinks(measured, worker.links_asked, &*worker.profile);
  // The shown profile stays as it was if it would be too large with all links.
  std::string shown = ProfileToJson(*worker.profile);
  if (shown.size() <= kMaxProfileBytes) {
    worker.info.set_profile_json(std::move(shown));
  }
  if (trouble.empty()) return;
  LogWarning(LogWorker(worker.info.name()),
             " could not measure all links: ", trouble);
}

std::vector<MachineProfile> WorkerRegistry::Profiles(
    const std::vector<WorkerId>& workers) const {
  std::vector<MachineProfile> profiles;
  for (WorkerId id : workers) profiles.push_back(*at(id).profile);
  return profiles;
}

std::vector<MachineProfile> WorkerRegistry::PlanningProfiles(
    const std::vector<WorkerId>& workers) const {
  std::vector<MachineProfile> all;
  std::map<WorkerId, size_t> place;
  for (const auto& [id, worker] : workers_) {
    if (!worker.profile || !worker.known() || worker.withdrawn()) continue;
    place[id] = all.size();
    all.push_back(*worker.profile);
  }
  SeparateMachines(&all);
  std::vector<MachineProfile> profiles;
  for (WorkerId id : workers) {
    const auto it = place.find(id);
    profiles.push_back(it == place.end() ? *at(id).profile : all[it->second]);
  }
  return profiles;
}

// -- Tests of links.

void WorkerRegistry::TestLinks() {
  if (!options_.test_links) return;
  std::vector<WorkerId> all;
  for (const auto& [id, worker] : workers_) {
    if (worker.known() && !worker.withdrawn()) all.push_back(id);
  }
  for (const LinkTests::Question& question :
       link_tests_.Ask(all, options_.clock->Monotonic())) {
    v1::CoordinatorMessage message;
    message.mutable_reach_links()->set_epoch(question.number);
    for (const WorkerId to : question.to) {
      auto* peer = message.mutable_reach_links()->add_peers();
      peer->set_name(name(to));
      peer->set_link_address(at(to).info.link_address());
    }
    Send(question.from, std::move(message));
  }
  JudgeLinks();
}

void WorkerRegistry::OnLinksTested(WorkerId id,
                                   const v1::LinksReached& answer) {
  std::vector<std::string> errors;
  for (const auto& link : answer.links()) {
    errors.push_back(ClipText(link.error()));
  }
  link_tests_.OnAnswer(answer.epoch(), id, errors, options_.clock->Monotonic());
}

void WorkerRegistry::FoundLink(WorkerId from, WorkerId to,
                               const std::string& error) {
  if (!options_.test_links) return;
  link_tests_.Found(from, to, error, options_.clock->Monotonic());
}

std::string WorkerRegistry::UnlinkedText(WorkerId from, WorkerId to,
                                         const std::string& error) const {
  return absl::StrCat("worker '", name(from), "' can't open a link to '",
                      name(to), "' at ", at(to).info.link_address(), ": ",
                      error);
}

void WorkerRegistry::JudgeLinks() {
  if (judged_ == link_tests_.version()) return;
  judged_ = link_tests_.version();
  absl::flat_hash_map<std::string, LeftOut::Entry> before;
  std::swap(before, outcasts_);
  const absl::Duration now = options_.clock->Monotonic();
  bool changed = false;
  for (const LinkTests::Outcast& outcast : link_tests_.Outcasts()) {
    const AttachedWorker& worker = at(outcast.worker);
    const std::string key = KeyOf(worker.info);
    const auto it = before.find(key);
    const std::string what = UnlinkedText(
        outcast.from, outcast.to, link_tests_.Why(outcast.from, outcast.to));
    LeftOut::Entry& entry = outcasts_[key];
    entry.why = outcast.reaches_nobody
                    ? absl::StrCat("it can't reach others; last: ", what)
                    : absl::StrCat("it can't be reached at ",
                                   worker.info.link_address(), ": ", what);
    entry.since = it == before.end() ? now : it->second.since;
    entry.until = outcast.again;
    if (it != before.end()) continue;
    changed = true;
    LogWarning(LogWorker(worker.info.name()),
               " is left out until it can be linked, if there are others "
               "enough: ",
               entry.why);
  }
  if (changed || outcasts_.size() != before.size()) ++changes_;
}

// -- Blame.

void WorkerRegistry::LeaveOut(WorkerId id, const std::string& why) {
  const AttachedWorker& worker = at(id);
  const absl::Duration now = options_.clock->Monotonic();
  left_out_.Add(KeyOf(worker.info), ClipText(why), now);
  ++changes_;
  LogWarning(LogWorker(worker.info.name()), " is left out for ",
             absl::FormatDuration(OutOf(worker)->until - now),
             ", if there are others enough: ", why);
}

absl::Duration WorkerRegistry::OutFor(const AttachedWorker& worker) const {
  const LeftOut::Entry* const out = OutOf(worker);
  if (out == nullptr) return absl::ZeroDuration();
  // The time of a test may be over, and its answer not be here.
  return std::max(out->until - options_.clock->Monotonic(),
                  absl::Duration(absl::Milliseconds(1)));
}

const LeftOut::Entry* WorkerRegistry::OutOf(
    const AttachedWorker& worker) const {
  const auto it = outcasts_.find(KeyOf(worker.info));
  if (it != outcasts_.end()) return &it->second;
  return left_out_.Find(KeyOf(worker.info), options_.clock->Monotonic());
}

void WorkerRegistry::Pardon(WorkerId id) {
  left_out_.Pardon(KeyOf(at(id).info));
}

void WorkerRegistry::BlameLink(WorkerId from, WorkerId to,
                               const std::string& why) {
  if (options_.test_links) {
    // More may have changed since the tests than this link.
    std::vector<WorkerId> all;
    for (const auto& [id, worker] : workers_) all.push_back(id);
    link_tests_.Recheck(all);
    FoundLink(from, to, why);
  }
  const LinkBlame::Verdict verdict =
      link_blame_.OnUnreached(name(from), name(to));
  for (const auto& [id, worker] : workers_) {
    if (worker.registered && std::count(verdict.innocent.begin(),
                                        verdict.innocent.end(), name(id)) > 0) {
      Pardon(id);
    }
  }
  if (verdict.culprit == name(from)) {
    LeaveOut(from, absl::StrCat("it can't reach several others; last: ", why));
  } else {
    LeaveOut(to, absl::StrCat("it can't be reached at ",
                              at(to).info.link_address(), ": ", why));
  }
}

void WorkerRegistry::OnReached(WorkerId from, WorkerId to) {
  link_blame_.OnReached(name(from), name(to));
}

void WorkerRegistry::EndNewcomers() {
  for (auto& [id, worker] : workers_) worker.newcomer = false;
}

}  // namespace sluice
