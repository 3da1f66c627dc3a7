#include "runtime/exec/attention/host_attention.h"

#include <optional>
#include <utility>

#include "common/status_macros.h"
#include "runtime/exec/timed.h"
#include "runtime/kernels/backend.h"

namespace sluice {

HostAttention::HostAttention(const StreamContext& context, int slots,
                             bool defer, KvStreams device_kv, KvStreams host_kv)
    : context_(context),
      defer_(defer),
      here_(context.backend, context.layers.begin,
            &context.stats->attention_seconds, context.row,
            std::move(device_kv)),
      there_(context.host_backend, context.layers.begin, &attended_seconds_,
             nullptr, std::move(host_kv)),
      row_(AddTraceRow(context.tracer, "host attention")),
      queue_(slots) {
  for (int i = 0; i < slots; ++i) jobs_.push_back(std::make_unique<Job>());
  thread_ = Thread("host attention", [this] { Loop(); });
}

HostAttention::~HostAttention() {
  Drain();
  queue_.Close();
  thread_.Join();
}

void HostAttention::BeginStep(StepWork* step) {
  step_ = step;
  // Neighbouring micro-batches have different slots, if there are several.
  for (size_t k = 0; k < step->num_batches; ++k) {
    step->batches[k].view.attention_slot =
        static_cast<int32_t>(k % jobs_.size());
  }
  here_.BeginStep(step);
  there_.BeginStep(step);
  there_.ReadAhead();
}

bool HostAttention::OnHost(size_t item) const {
  const std::vector<SegmentRun>& runs = step_->kv_of(item).runs;
  return !runs.empty() && runs.back().tier != Tier::kDevice;
}

void HostAttention::CopyRows(Job& job, bool to_host) {
  const auto [layer, k] = step_->items[job.item];
  const BatchWork& work = step_->batches[k];
  const int32_t slot = work.view.attention_slot;
  const Backend::AttentionRows device = context_.backend->attention_rows(slot);
  const Backend::AttentionRows host =
      context_.host_backend->attention_rows(slot);
  IoCompletion& done = to_host ? job.out : job.in;
  const IoLabel label = {to_host ? "qkv" : "attention",
                         {{{"layer", context_.layers.begin + layer}}}};
  // Copies are announced as a whole, so that `done` isn't complete in between.
  done.Expect(1);
  for (const SegmentRun& run : step_->kv_of(job.item).runs) {
    if (run.tier == Tier::kDevice) continue;
    const SegmentView& first = work.segments[run.first];
    const SegmentView& last = work.segments[run.first + run.count - 1];
    const size_t row = first.row;
    const size_t rows = last.row + last.num_tokens - first.row;
    done.Expect(1);
    if (to_host) {
      context_.device->CopyOut(
          {host.qkv + row * host.qkv_bytes, rows * host.qkv_bytes},
          {device.qkv + row * device.qkv_bytes, rows * device.qkv_bytes}, &done,
          label);
    } else {
      context_.device->CopyIn(
          {device.out + row * device.out_bytes, rows * device.out_bytes},
          {host.out + row * host.out_bytes, rows * host.out_bytes}, &done,
          label);
    }
  }
  done.Done(absl::OkStatus());
}

absl::StatusOr<size_t> HostAttention::Begin(size_t item) {
  if (!OnHost(item)) return here_.Begin(item);
  SLUICE_RETURN_IF_ERROR(context_.compute->Finish());
  Job& job = JobOf(item);
  job.item = item;
  CopyRows(job, true);
  job.in.Expect(1);
  queue_.Push(&job);
  SLUICE_ASSIGN_OR_RETURN(const size_t all, here_.Begin(item));
  // The next item shares the layer's weights, which are there.
  const std::vector<StepWork::Item>& items = step_->items;
  const bool defer = defer_ && item + 1 < items.size() &&
                     items[item + 1].layer == items[item].layer;
  return defer ? item : all;
}

absl::Status HostAttention::Finish(size_t item) {
  return OnHost(item) ? WaitTimed(JobOf(item).in, &stall_seconds_)
                      : absl::OkStatus();
}

void HostAttention::Drain() {
  for (const auto& job : jobs_) {
    job->out.Wait().IgnoreError();
    job->in.Wait().IgnoreError();
  }
}

void HostAttention::Reset() {
  Drain();
  here_.Reset();
  there_.Reset();
}

void HostAttention::AddTo(SweepStats* stats) const {
  SweepStats there;
  there_.AddTo(&there);
  stats->kv_read_bytes += there.kv_read_bytes;
  stats->kv_write_bytes += there.kv_write_bytes;
  stats->attention_stall_seconds += stall_seconds_;
  stats->host_attention_seconds += busy_seconds_;
}

void HostAttention::Loop() {
  while (const std::optional<Job*> next = queue_.Pop()) {
    Job& job = **next;
    absl::Status status = job.out.Wait();
    const int64_t start = TraceNow();
    if (status.ok()) status = there_.Begin(job.item).status();
    if (status.ok()) status = there_.Finish(job.item);
    const int64_t end = TraceNow();
    if (row_ != nullptr) {
      row_->Add(
          "attention", "compute", start, end,
          {{{"layer", context_.layers.begin + step_->items[job.item].layer}}});
    }
    busy_seconds_ = busy_seconds_ + static_cast<double>(end - start) * 1e-9;
    if (status.ok()) CopyRows(job, false);
    job.in.Done(status);
  }
}

}  // namespace sluice
