#include "runtime/memory/disk/io_queue.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {

namespace {
absl::Status Stopping(const DiskFile& file) {
  return absl::CancelledError(
      absl::StrCat(file.name(), ": the I/O engine is stopping"));
}
}  // namespace

IoQueue::IoQueue(size_t request_bytes, Tracer* tracer, WorkMarks* marks)
    : request_bytes_(request_bytes), marks_(marks) {
  wires_[0].row = AddTraceRow(tracer, "disk read");
  wires_[1].row = AddTraceRow(tracer, "disk write");
}

IoQueue::~IoQueue() {
  MutexLock lock(&mu_);
  assert(closed_ && wires_[0].jobs_begun == 0 && wires_[1].jobs_begun == 0);
}

bool IoQueue::Add(bool write, const DiskFile& file, uint64_t offset,
                  std::byte* memory, size_t bytes, IoCompletion* done,
                  const IoLabel& label) {
  const absl::Status status = file.CheckRange(offset, memory, bytes, write);
  if (!status.ok() || bytes == 0) {
    done->Done(status);
    return false;
  }
  {
    MutexLock lock(&mu_);
    if (!closed_) {
      if (free_ == nullptr) free_ = &jobs_.emplace_back();
      IoJob* job = std::exchange(free_, free_->next);
      *job = {&file, offset, memory, bytes, write, done, label};
      Wire* wire = &wires_[write];
      (wire->last == nullptr ? wire->first : wire->last->next) = job;
      wire->last = job;
      work_.NotifyOne();
      return true;
    }
  }
  done->Done(Stopping(file));
  return false;
}

bool IoQueue::Take(IoRequest* request) {
  MutexLock lock(&mu_);
  return TakeLocked(request);
}

bool IoQueue::WaitAndTake(IoRequest* request) {
  MutexLock lock(&mu_);
  while (!TakeLocked(request)) {
    if (closed_) return false;
    work_.Wait(&mu_);
  }
  return true;
}

bool IoQueue::has_requests() const {
  MutexLock lock(&mu_);
  return wires_[0].first != nullptr || wires_[1].first != nullptr;
}

bool IoQueue::TakeLocked(IoRequest* request) {
  if (wires_[turn_].first == nullptr) turn_ = 1 - turn_;
  Wire* wire = &wires_[turn_];
  IoJob* job = wire->first;
  if (job == nullptr) return false;
  turn_ = 1 - turn_;

  const size_t bytes = std::min(request_bytes_, job->bytes - job->taken);
  *request = {
      job,   job->file, job->offset + job->taken, job->memory + job->taken,
      bytes, job->write};
  const bool idle = wire->requests_taken == 0;
  const int64_t now = idle ? TraceNow() : 0;
  if (idle) wire->busy_since = now;
  // A gap within a job belongs to the job.
  if (idle && wire->jobs_begun == 0) wire->span_start = now;
  if (job->taken == 0) ++wire->jobs_begun;
  ++wire->requests_taken;
  ++job->requests;
  job->taken += bytes;
  if (job->taken == job->bytes) PopFirst(wire);
  return true;
}

void IoQueue::PopFirst(Wire* wire) {
  wire->first = wire->first->next;
  if (wire->first == nullptr) wire->last = nullptr;
}

IoDone IoQueue::Finish(const IoRequest& request, const absl::Status& status) {
  AddMark(marks_);
  MutexLock lock(&mu_);
  const int64_t now = TraceNow();
  IoJob* job = request.job;
  Wire* wire = &wires_[request.write];
  if (status.ok()) wire->bytes += request.bytes;
  if (--wire->requests_taken == 0) wire->busy_ns += now - wire->busy_since;
  --job->requests;
  job->status.Update(status);
  if (job->taken < job->bytes) {
    if (job->status.ok()) return {};
    // The rest of a job that failed is not tried. Only the first job can have
    // a rest.
    job->taken = job->bytes;
    PopFirst(wire);
  }
  if (job->requests > 0) return {};
  return EndJob(job, now);
}

IoDone IoQueue::EndJob(IoJob* job, int64_t now) {
  Wire* wire = &wires_[job->write];
  if (wire->row != nullptr) {
    const char* name = job->label.name != nullptr ? job->label.name
                       : job->write               ? "write"
                                                  : "read";
    wire->row->Add(
        name, "disk", wire->span_start, now,
        WithArg(job->label.args, "bytes", static_cast<int64_t>(job->bytes)));
  }
  wire->span_start = now;
  --wire->jobs_begun;
  IoDone done{job->done, std::move(job->status)};
  job->next = std::exchange(free_, job);
  return done;
}

void IoQueue::Close() {
  IoJob* cancelled = nullptr;
  IoJob** end = &cancelled;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    for (Wire& wire : wires_) {
      while (wire.first != nullptr) {
        IoJob* job = wire.first;
        PopFirst(&wire);
        const bool begun = job->taken > 0;
        job->status.Update(Stopping(*job->file));
        job->taken = job->bytes;
        // What has requests with the disk ends with the last of them.
        if (job->requests > 0) continue;
        if (begun) --wire.jobs_begun;
        *end = job;
        end = &job->next;
      }
    }
    *end = nullptr;
    work_.NotifyAll();
  }
  // These are nobody's but ours, and never return to the free list.
  for (; cancelled != nullptr; cancelled = cancelled->next) {
    cancelled->done->Done(cancelled->status);
  }
}

bool IoQueue::closed() const {
  MutexLock lock(&mu_);
  return closed_;
}

IoEngine::Totals IoQueue::totals() const {
  MutexLock lock(&mu_);
  const int64_t now = TraceNow();
  const auto busy_seconds = [now](const Wire& wire) {
    const int64_t current = wire.requests_taken > 0 ? now - wire.busy_since : 0;
    return static_cast<double>(wire.busy_ns + current) * 1e-9;
  };
  return {wires_[0].bytes, wires_[1].bytes, busy_seconds(wires_[0]),
          busy_seconds(wires_[1])};
}

}  // namespace sluice
