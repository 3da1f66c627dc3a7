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
  directions_[0].row = AddTraceRow(tracer, "disk read");
  directions_[1].row = AddTraceRow(tracer, "disk write");
}

IoQueue::~IoQueue() {
  MutexLock lock(&mu_);
  assert(closed_ && directions_[0].jobs_begun == 0 &&
         directions_[1].jobs_begun == 0);
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
      Direction* direction = &directions_[write];
      (direction->last == nullptr ? direction->first : direction->last->next) =
          job;
      direction->last = job;
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
  return directions_[0].first != nullptr || directions_[1].first != nullptr;
}

bool IoQueue::TakeLocked(IoRequest* request) {
  if (directions_[turn_].first == nullptr) turn_ = 1 - turn_;
  Direction* direction = &directions_[turn_];
  IoJob* job = direction->first;
  if (job == nullptr) return false;
  turn_ = 1 - turn_;

  const size_t bytes = std::min(request_bytes_, job->bytes - job->taken);
  *request = {
      job,   job->file, job->offset + job->taken, job->memory + job->taken,
      bytes, job->write};
  const bool idle = direction->requests_taken == 0;
  const int64_t now = idle ? TraceNow() : 0;
  if (idle) direction->busy_since = now;
  // A gap within a job belongs to the job.
  if (idle && direction->jobs_begun == 0) direction->span_start = now;
  if (job->taken == 0) ++direction->jobs_begun;
  ++direction->requests_taken;
  ++job->requests;
  job->taken += bytes;
  if (job->taken == job->bytes) PopFirst(direction);
  return true;
}

void IoQueue::PopFirst(Direction* direction) {
  direction->first = direction->first->next;
  if (direction->first == nullptr) direction->last = nullptr;
}

IoDone IoQueue::Finish(const IoRequest& request, const absl::Status& status) {
  AddMark(marks_);
  MutexLock lock(&mu_);
  const int64_t now = TraceNow();
  IoJob* job = request.job;
  Direction* direction = &directions_[request.write];
  if (status.ok()) direction->bytes += request.bytes;
  if (--direction->requests_taken == 0)
    direction->busy_ns += now - direction->busy_since;
  --job->requests;
  job->status.Update(status);
  if (job->taken < job->bytes) {
    if (job->status.ok()) return {};
    // The rest of a failed job is skipped. Only the first job can have a rest.
    job->taken = job->bytes;
    PopFirst(direction);
  }
  if (job->requests > 0) return {};
  return EndJob(job, now);
}

IoDone IoQueue::EndJob(IoJob* job, int64_t now) {
  Direction* direction = &directions_[job->write];
  if (direction->row != nullptr) {
    const char* name = job->label.name != nullptr ? job->label.name
                       : job->write               ? "write"
                                                  : "read";
    direction->row->Add(
        name, "disk", direction->span_start, now,
        WithArg(job->label.args, "bytes", static_cast<int64_t>(job->bytes)));
  }
  direction->span_start = now;
  --direction->jobs_begun;
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
    for (Direction& direction : directions_) {
      while (direction.first != nullptr) {
        IoJob* job = direction.first;
        PopFirst(&direction);
        const bool begun = job->taken > 0;
        job->status.Update(Stopping(*job->file));
        job->taken = job->bytes;
        // Jobs with requests in flight end with the last of these.
        if (job->requests > 0) continue;
        if (begun) --direction.jobs_begun;
        *end = job;
        end = &job->next;
      }
    }
    *end = nullptr;
    work_.NotifyAll();
  }
  // These jobs are used only here, and never return to the free list.
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
  const auto busy_seconds = [now](const Direction& direction) {
    const int64_t current =
        direction.requests_taken > 0 ? now - direction.busy_since : 0;
    return static_cast<double>(direction.busy_ns + current) * 1e-9;
  };
  return {directions_[0].bytes, directions_[1].bytes,
          busy_seconds(directions_[0]), busy_seconds(directions_[1])};
}

}  // namespace sluice
