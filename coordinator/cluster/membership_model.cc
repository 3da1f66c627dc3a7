// Of Membership: whether a worker's copy of the model is the one that counts
// (see ModelIdentity).

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "coordinator/cluster/membership.h"

namespace sluice {
namespace {

constexpr size_t kMostErrorBytes = 1024;

}  // namespace

absl::Status Membership::CheckContent(const v1::Register& info,
                                      const v1::ModelContent& said,
                                      ModelContent* content) const {
  if (!said.error().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker '", info.name(), "' can't read its model: ",
        absl::string_view(said.error()).substr(0, kMostErrorBytes)));
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

absl::Status Membership::CompareModel(const v1::Register& info,
                                      const ModelContent& content) const {
  for (const auto& [id, other] : workers_) {
    if (!other.same_model) continue;
    const ModelIdentity::Copy first = {other.info.name(),
                                       other.info.model_dir(), other.content};
    return identity_.Check({info.name(), info.model_dir(), content}, &first);
  }
  return identity_.Check({info.name(), info.model_dir(), content}, nullptr);
}

void Membership::OnModelContent(WorkerId id, Worker& worker,
                                const v1::ModelContent& said) {
  if (worker.same_model) return;
  const absl::Status status = CheckContent(worker.info, said, &worker.content);
  if (!status.ok()) Refuse(id, worker, status);
}

void Membership::CompareModels() {
  std::vector<WorkerId> waiting;
  for (const auto& [id, worker] : workers_) {
    if (worker.registered && !worker.same_model) waiting.push_back(id);
  }
  for (const WorkerId id : waiting) {
    const auto it = workers_.find(id);
    if (it == workers_.end()) continue;  // went with one that was dropped
    Worker& worker = it->second;
    const absl::Status status = CompareModel(worker.info, worker.content);
    if (absl::IsFailedPrecondition(status)) {
      Refuse(id, worker, status);
    } else if (status.ok()) {
      worker.same_model = true;
      OnJoined();
      // Now that there is another, the two must not be in one plan.
      DropFormerModel();
    }
  }
}

void Membership::DropFormerModel() {
  std::vector<std::pair<WorkerId, absl::Status>> others;
  for (const auto& [id, worker] : workers_) {
    if (!worker.same_model) continue;
    absl::Status status = identity_.Check(
        {worker.info.name(), worker.info.model_dir(), worker.content}, nullptr);
    if (absl::IsFailedPrecondition(status)) {
      others.emplace_back(id, std::move(status));
    }
  }
  for (const auto& [id, status] : others) Remove(id, status);
}

double Membership::HashedShare(const Worker& worker) const {
  const double all = static_cast<double>(worker.heartbeat.bytes_to_hash());
  const double done = static_cast<double>(worker.heartbeat.hashed_bytes());
  return all > 0 ? std::min(1.0, done / all) : 0;
}

std::string Membership::CheckingDetail() const {
  for (const auto& [id, worker] : workers_) {
    if (!worker.registered || worker.same_model) continue;
    if (worker.content.known()) {
      return "; the coordinator is checking its weights";
    }
    return absl::StrCat("; worker '", worker.info.name(),
                        "' is checking its weights: ",
                        static_cast<int>(100 * HashedShare(worker)), " %");
  }
  return "";
}

std::optional<ModelContent> Membership::TakeBegunModel() {
  return std::exchange(begun_model_, std::nullopt);
}

}  // namespace sluice
