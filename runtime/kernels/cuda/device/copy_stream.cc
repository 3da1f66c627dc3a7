#include "runtime/kernels/cuda/device/copy_stream.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<CopyStream>> CopyStream::Create(
    const std::string& name, CudaHealth* health, Tracer* tracer) {
  std::unique_ptr<CopyStream> self(new CopyStream(name, health, tracer));
  // The stream waits for no other one, and none for it.
  SLUICE_RETURN_IF_ERROR(health->Check(
      cudaStreamCreateWithFlags(&self->stream_, cudaStreamNonBlocking),
      absl::StrCat("making the stream ", name)));
  self->thread_ = Thread(name, [copies = self.get()] { copies->Loop(); });
  return self;
}

CopyStream::~CopyStream() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
  // Nobody is left to hear of errors.
  MutexLock lock(&mu_);
  for (cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  (void)cudaGetLastError();
}

void CopyStream::Copy(void* to, const void* from, size_t bytes,
                      cudaMemcpyKind kind, IoCompletion* done,
                      const IoLabel& label) {
  Flight flight;
  flight.bytes = bytes;
  flight.kind = kind;
  flight.done = done;
  flight.label = label;
  absl::Status status;
  {
    MutexLock lock(&begin_mu_);
    status = Begin(to, from, &flight);
  }
  if (!status.ok()) done->Done(status);
}

absl::Status CopyStream::TakeEvents(Flight* flight) {
  {
    MutexLock lock(&mu_);
    if (events_.size() >= 2) {
      flight->start = events_.back();
      events_.pop_back();
      flight->end = events_.back();
      events_.pop_back();
      return absl::OkStatus();
    }
  }
  for (cudaEvent_t* event : {&flight->start, &flight->end}) {
    // Whoever waits for the event sleeps.
    SLUICE_RETURN_IF_ERROR(
        health_->Check(cudaEventCreateWithFlags(event, cudaEventBlockingSync),
                       "making an event"));
  }
  return absl::OkStatus();
}

absl::Status CopyStream::Begin(void* to, const void* from, Flight* flight) {
  SLUICE_RETURN_IF_ERROR(health_->status());
  const auto check = [&](cudaError_t error) {
    return health_->Check(
        error, absl::StrCat(name_, ": copying ", flight->bytes, " bytes"));
  };
  SLUICE_RETURN_IF_ERROR(check(cudaSetDevice(health_->ordinal())));
  absl::Status status = TakeEvents(flight);
  if (status.ok()) status = check(cudaEventRecord(flight->start, stream_));
  if (status.ok() && flight->bytes > 0) {
    status =
        check(cudaMemcpyAsync(to, from, flight->bytes, flight->kind, stream_));
  }
  if (status.ok()) {
    status = check(cudaEventRecord(flight->end, stream_));
    // Without this, nothing tells when the copy lets go of its memory.
    if (!status.ok()) (void)cudaStreamSynchronize(stream_);
  }
  MutexLock lock(&mu_);
  if (status.ok()) {
    flights_.push_back(*flight);
    changed_.NotifyAll();
    return absl::OkStatus();
  }
  for (cudaEvent_t event : {flight->start, flight->end}) {
    if (event != nullptr) events_.push_back(event);
  }
  return status;
}

CopyStream::Totals CopyStream::totals() const {
  MutexLock lock(&mu_);
  return totals_;
}

void CopyStream::Loop() {
  // An error here comes again where it matters.
  (void)health_->Check(cudaSetDevice(health_->ordinal()), name_);
  while (true) {
    Flight flight;
    {
      MutexLock lock(&mu_);
      while (flights_.empty() && !stopping_) changed_.Wait(&mu_);
      if (flights_.empty()) return;
      flight = flights_.front();
      flights_.pop_front();
    }
    const absl::Status status = Land(flight);
    {
      MutexLock lock(&mu_);
      events_.push_back(flight.start);
      events_.push_back(flight.end);
    }
    flight.done->Done(status);
  }
}

absl::Status CopyStream::Land(const Flight& flight) {
  const auto check = [&](cudaError_t error) {
    return health_->Check(
        error,
        absl::StrCat(name_, ": a copy of ", flight.bytes, " bytes under way"));
  };
  SLUICE_RETURN_IF_ERROR(check(cudaEventSynchronize(flight.end)));
  if (flight.kind == cudaMemcpyDeviceToDevice) return absl::OkStatus();
  float ms = 0;
  SLUICE_RETURN_IF_ERROR(
      check(cudaEventElapsedTime(&ms, flight.start, flight.end)));
  if (row_ != nullptr) {
    // The device's clock is not the timeline's: a copy ended when its end was
    // seen, and began as long before as it took, but not before the last one
    // had ended.
    const int64_t end = TraceNow();
    const int64_t start =
        std::max(last_end_ns_,
                 end - static_cast<int64_t>(static_cast<double>(ms) * 1e6));
    row_->Add(flight.label.name == nullptr ? "copy" : flight.label.name, "copy",
              start, end,
              WithArg(flight.label.args, "bytes",
                      static_cast<int64_t>(flight.bytes)));
    last_end_ns_ = end;
  }
  MutexLock lock(&mu_);
  totals_.bytes += flight.bytes;
  totals_.busy_seconds += static_cast<double>(ms) * 1e-3;
  return absl::OkStatus();
}

}  // namespace sluice
