#include "worker/stage/stage_reporter.h"

#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "common/limits.h"
#include "common/text/text.h"
#include "proto/convert.h"
#include "runtime/kv/kv_groups.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {
namespace {

constexpr absl::string_view kNextUnreachedUrl = "sluice/next-unreached";

}  // namespace

absl::Status NextUnreached(absl::Status status) {
  status.SetPayload(kNextUnreachedUrl, absl::Cord());
  return status;
}

bool IsNextUnreached(const absl::Status& status) {
  return status.GetPayload(kNextUnreachedUrl).has_value();
}

void StageReporter::Progress(PlanEpoch epoch, uint64_t done, uint64_t total,
                             bool fetching) {
  v1::WorkerMessage message;
  auto* progress = message.mutable_load_progress();
  progress->set_epoch(epoch.value());
  progress->set_bytes_done(done);
  progress->set_bytes_total(total);
  progress->set_fetching(fetching);
  send_(std::move(message));
}

void StageReporter::Ready(PlanEpoch epoch, const StageExecutor& stage) {
  const WindowRoom window = stage.kv_window();
  v1::WorkerMessage message;
  auto* ready = message.mutable_stage_ready();
  ready->set_epoch(epoch.value());
  ready->set_kv_pages(stage.kv_pages());
  ready->set_kv_by_need(stage.kv_by_need());
  ready->set_kv_shared(stage.kv_shared());
  ready->set_window_pages(window.pages);
  ready->set_window_pages_each(window.pages_each);
  ready->set_page_tokens(stage.page_tokens());
  ready->set_weight_bytes(stage.weight_bytes());
  send_(std::move(message));
}

void StageReporter::Failed(PlanEpoch epoch, const absl::Status& status) {
  v1::WorkerMessage message;
  auto* failed = message.mutable_stage_failed();
  failed->set_epoch(epoch.value());
  failed->set_code(static_cast<int32_t>(status.code()));
  failed->set_message(std::string(
      ClipUtf8(EscapeInvalidUtf8(status.message()), kMaxFailureBytes)));
  failed->set_next_unreached(IsNextUnreached(status));
  send_(std::move(message));
}

void StageReporter::Result(const StepResult& result, double compute_seconds) {
  std::vector<v1::StepResult> parts = ToProtoParts(result);
  parts.back().set_compute_seconds(compute_seconds);
  for (v1::StepResult& part : parts) {
    v1::WorkerMessage message;
    *message.mutable_step_result() = std::move(part);
    send_(std::move(message));
  }
}

void StageReporter::LinkId(PlanEpoch epoch, const std::string& id) {
  v1::WorkerMessage message;
  message.mutable_link_id()->set_epoch(epoch.value());
  message.mutable_link_id()->set_id(id);
  send_(std::move(message));
}

}  // namespace sluice
