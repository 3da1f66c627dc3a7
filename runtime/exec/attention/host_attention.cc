#include "runtime/exec/attention/host_attention.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/kernels/backend.h"
#include "runtime/memory/cpu_topology.h"

namespace sluice {

HostAttention::HostAttention(const Options& options)
    : options_(options), row_(AddTraceRow(options.tracer, "host attention")) {
  for (int i = 0; i < options.slots; ++i) {
    jobs_.push_back(std::make_unique<Job>());
  }
  thread_ = Thread("host attention", [this] { Loop(); });
}

HostAttention::~HostAttention() {
  Drain();
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}

void HostAttention::CopyRows(Job& job, bool to_host) {
  const int32_t slot = job.work->view.attention_slot;
  const Backend::AttentionRows device =
      options_.on_device->attention_rows(slot);
  const Backend::AttentionRows host = options_.on_host->attention_rows(slot);
  IoCompletion& done = to_host ? job.out : job.in;
  const IoLabel label = {to_host ? "qkv" : "attention",
                         {{{"layer", job.layer}}}};
  // Announced as a whole, so that it can't be complete in between.
  done.Expect(1);
  for (const SegmentRun& run : job.work->runs) {
    if (run.tier == Tier::kDevice) continue;
    const SegmentView& first = job.work->segments[run.first];
    const SegmentView& last = job.work->segments[run.first + run.count - 1];
    const size_t row = first.row;
    const size_t rows = last.row + last.num_tokens - first.row;
    done.Expect(1);
    if (to_host) {
      options_.device->CopyOut(
          {host.qkv + row * host.qkv_bytes, rows * host.qkv_bytes},
          {device.qkv + row * device.qkv_bytes, rows * device.qkv_bytes}, &done,
          label);
    } else {
      options_.device->CopyIn(
          {device.out + row * device.out_bytes, rows * device.out_bytes},
          {host.out + row * host.out_bytes, rows * host.out_bytes}, &done,
          label);
    }
  }
  done.Done(absl::OkStatus());
}

absl::Status HostAttention::Begin(int layer, int local, StageWork* work) {
  SLUICE_RETURN_IF_ERROR(options_.compute->Finish());
  Job& job = *jobs_[work->view.attention_slot];
  job.layer = layer;
  job.local = local;
  job.work = work;
  CopyRows(job, true);
  MutexLock lock(&mu_);
  job.done = false;
  queue_.push_back(&job);
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status HostAttention::Wait(int32_t slot) {
  Job& job = *jobs_[slot];
  const int64_t start = TraceNow();
  absl::Status status;
  {
    MutexLock lock(&mu_);
    while (!job.done) changed_.Wait(&mu_);
    status = job.status;
  }
  status.Update(job.in.Wait());
  if (options_.stall_seconds != nullptr) {
    *options_.stall_seconds += static_cast<double>(TraceNow() - start) * 1e-9;
  }
  return status;
}

void HostAttention::Drain() {
  for (const auto& job : jobs_) {
    {
      MutexLock lock(&mu_);
      while (!job->done) changed_.Wait(&mu_);
    }
    job->out.Wait().IgnoreError();
    job->in.Wait().IgnoreError();
  }
}

double HostAttention::busy_seconds() const {
  MutexLock lock(&mu_);
  return busy_seconds_;
}

void HostAttention::Loop() {
  BindThisThread(options_.cores);
  mu_.Lock();
  for (;;) {
    while (queue_.empty() && !stopping_) changed_.Wait(&mu_);
    if (queue_.empty()) break;
    Job& job = *queue_.front();
    queue_.pop_front();
    mu_.Unlock();
    absl::Status status = job.out.Wait();
    const int64_t start = TraceNow();
    if (status.ok()) status = Run(job);
    const int64_t end = TraceNow();
    if (row_ != nullptr) {
      row_->Add("attention", "compute", start, end, {{{"layer", job.layer}}});
    }
    if (status.ok()) CopyRows(job, false);
    mu_.Lock();
    busy_seconds_ += static_cast<double>(end - start) * 1e-9;
    job.status = status;
    job.done = true;
    changed_.NotifyAll();
  }
  mu_.Unlock();
}

absl::Status HostAttention::Run(Job& job) {
  StageWork& work = *job.work;
  if (options_.stager != nullptr) options_.stager->ReadAhead();
  // Those in memory first: meanwhile the others come.
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    for (const SegmentRun& run : work.runs) {
      if (run.tier != tier) continue;
      if (tier == Tier::kDisk) {
        const KvStager::Group* group = nullptr;
        SLUICE_RETURN_IF_ERROR(options_.stager->Take(work.segments, &group));
        if (group->members.front().segment != run.first) {
          return absl::InternalError("groups of KV out of order");
        }
      } else {
        for (int32_t s = run.first; s < run.first + run.count; ++s) {
          work.segments[s].kv = options_.kv->LayerBase(job.local);
        }
      }
      for (int32_t s = run.first; s < run.first + run.count; ++s) {
        if (options_.device->Touches(work.segments[s].kv, 1)) {
          return absl::InternalError(
              "the host was to attend to a KV page of the device");
        }
      }
      SLUICE_RETURN_IF_ERROR(
          options_.on_host->Attend(job.layer, work.view, run.first, run.count));
      if (tier == Tier::kDisk) options_.stager->Put();
    }
  }
  if (options_.stager != nullptr) options_.stager->ReadAhead();
  return absl::OkStatus();
}

}  // namespace sluice
