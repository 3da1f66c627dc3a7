#include "worker/link/nccl_channel.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/host/logging.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr int kRanks = 2;
// A transfer that has just begun is polled often, one that waits for a slow
// network or a busy peer rarely.
constexpr absl::Duration kFirstPause = absl::Microseconds(20);
constexpr absl::Duration kLongestPause = absl::Microseconds(500);
// The pause between polls of an idle communicator.
constexpr absl::Duration kIdlePause = absl::Milliseconds(200);

// Any error of NCCL after both ends were connected is a lost link, which may be
// made again.
absl::Status Lost(const absl::Status& status) {
  if (status.ok() || absl::IsCancelled(status)) return status;
  return Unavailable("NCCL has lost the other end: ", status.message());
}

void* Pointer(cuda::DeviceAddress address) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(address));
}

}  // namespace

NcclChannel::NcclChannel(const NcclLibrary* library, cuda::Context* context,
                         PayloadTransport::ChannelOptions options)
    : nccl_(library->nccl()),
      cuda_(library->cuda()),
      library_(library),
      context_(context),
      options_(std::move(options)),
      pause_(kFirstPause) {}

void NcclChannel::Start() {
  MutexLock lock(&mu_);
  started_ = true;
  changed_.NotifyAll();
}

void NcclChannel::Push(PayloadView payload, std::function<void()> done) {
  MutexLock lock(&mu_);
  if (stopped_) return;
  queue_.push_back({payload, std::move(done)});
  changed_.NotifyAll();
}

void NcclChannel::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.NotifyAll();
}

bool NcclChannel::stopped() const {
  MutexLock lock(&mu_);
  return stopped_;
}

bool NcclChannel::finished() const {
  MutexLock lock(&mu_);
  return finished_;
}

void NcclChannel::Pause() {
  MutexLock lock(&mu_);
  if (stopped_) return;
  changed_.WaitFor(&mu_, pause_);
  pause_ = std::min(2 * pause_, kLongestPause);
}

void NcclChannel::Run() {
  const absl::Status status = Play();
  std::function<void(const absl::Status&)> on_broken;
  bool tell = false;
  {
    MutexLock lock(&mu_);
    tell = !stopped_;
    stopped_ = true;
    on_broken = std::exchange(options_.on_broken, nullptr);
  }
  // on_broken comes first, as the rest may take long.
  if (tell) on_broken(status);
  on_broken = nullptr;
  GiveBack();
  flights_.clear();
  std::deque<Item> dropped;
  MutexLock lock(&mu_);
  dropped.swap(queue_);
  finished_ = true;
}

absl::Status NcclChannel::Play() {
  {
    MutexLock lock(&mu_);
    while (!started_ && !stopped_) changed_.Wait(&mu_);
    if (stopped_) return absl::CancelledError("stopped");
  }
  SLUICE_RETURN_IF_ERROR(Connect());
  for (;;) {
    std::optional<Item> next;
    {
      MutexLock lock(&mu_);
      if (flights_.empty() && queue_.empty() && !stopped_) {
        changed_.WaitFor(&mu_, kIdlePause);
      }
      if (stopped_) return absl::CancelledError("stopped");
      if (flights_.size() < kLanes && !queue_.empty()) {
        next = std::move(queue_.front());
        queue_.pop_front();
      }
    }
    const bool launches = next.has_value();
    if (launches) {
      SLUICE_RETURN_IF_ERROR(Launch(*std::move(next)));
      pause_ = kFirstPause;
    }
    bool landed = false;
    if (!flights_.empty()) {
      SLUICE_ASSIGN_OR_RETURN(landed, Land());
    }
    if (landed) {
      Flight flight = std::move(flights_.front());
      flights_.pop_front();
      flight.item.done();
      pause_ = kFirstPause;
      continue;
    }
    SLUICE_RETURN_IF_ERROR(CheckComm());
    if (!launches && !flights_.empty()) Pause();
  }
}

absl::Status NcclChannel::Connect() {
  const bool sends = options_.end == PayloadTransport::End::kSender;
  absl::Status status = MakeLanes();
  if (status.ok()) {
    nccl::UniqueId id;
    std::memcpy(id.internal, options_.id.data(), nccl::kUniqueIdBytes);
    nccl::Config config;
    const int result =
        nccl_.CommInitRankConfig(&comm_, kRanks, id, sends ? 0 : 1, &config);
    if (result != nccl::kSuccess && result != nccl::kInProgress) {
      comm_ = nullptr;  // given back by NCCL
    }
    status = Settle(result, "ncclCommInitRankConfig");
  }
  if (absl::IsCancelled(status)) return status;
  status = Annotate(status, absl::StrCat("NCCL can't connect to the ",
                                         sends ? "next stage" : "stage before",
                                         " (NCCL_DEBUG=INFO says more)"));
  // OK and the peer's death are no errors of NCCL.
  if (status.ok() || absl::IsUnavailable(status)) return status;
  return absl::UnimplementedError(status.message());
}

absl::Status NcclChannel::MakeLanes() {
  SLUICE_RETURN_IF_ERROR(
      library_->CudaStatus(cuda_.CtxSetCurrent(context_), "cuCtxSetCurrent"));
  for (cuda::Stream** stream :
       {&transfers_, &lanes_[0].copies, &lanes_[1].copies}) {
    SLUICE_RETURN_IF_ERROR(library_->CudaStatus(
        cuda_.StreamCreate(stream, cuda::kStreamNonBlocking),
        "cuStreamCreate"));
  }
  for (Lane& lane : lanes_) {
    for (cuda::Event** event : {&lane.first, &lane.last}) {
      SLUICE_RETURN_IF_ERROR(library_->CudaStatus(
          cuda_.EventCreate(event, cuda::kEventDisableTiming),
          "cuEventCreate"));
    }
    SLUICE_RETURN_IF_ERROR(library_->CudaStatus(
        cuda_.MemAlloc(&lane.staging, std::max<size_t>(options_.max_bytes, 1)),
        absl::StrCat("cuMemAlloc of ", options_.max_bytes,
                     " bytes for staging")));
  }
  return absl::OkStatus();
}

absl::Status NcclChannel::Settle(int result, absl::string_view call) {
  pause_ = kFirstPause;
  while (result == nccl::kInProgress) {
    if (stopped()) return absl::CancelledError("stopped");
    Pause();
    const int asked = nccl_.CommGetAsyncError(comm_, &result);
    if (asked != nccl::kSuccess) result = asked;
  }
  return library_->NcclStatus(result, call);
}

absl::Status NcclChannel::CheckComm() {
  int error = nccl::kSuccess;
  const int asked = nccl_.CommGetAsyncError(comm_, &error);
  if (asked != nccl::kSuccess) error = asked;
  if (error == nccl::kInProgress) return absl::OkStatus();
  return Lost(library_->NcclStatus(error, "ncclCommGetAsyncError"));
}

absl::Status NcclChannel::Launch(Item item) {
  if (item.payload.bytes == 0) {
    flights_.push_back({std::move(item), -1});
    return absl::OkStatus();
  }
  if (!item.payload.on_device && item.payload.bytes > options_.max_bytes) {
    return Internal("a payload of ", item.payload.bytes,
                    " bytes; the channel was made for ", options_.max_bytes);
  }
  const int lane = next_lane_;
  next_lane_ = (next_lane_ + 1) % kLanes;
  // It is in flight from here on, as a copy may have begun when a call fails.
  flights_.push_back({std::move(item), lane});
  return Transfer(flights_.back());
}

absl::Status NcclChannel::Transfer(Flight& flight) {
  const PayloadView& payload = flight.item.payload;
  Lane& lane = lanes_[flight.lane];
  const bool sends = options_.end == PayloadTransport::End::kSender;
  const auto cuda = [&](int result, absl::string_view call) {
    return library_->CudaStatus(result, call);
  };
  void* const data = payload.on_device ? payload.data : Pointer(lane.staging);
  if (sends && !payload.on_device) {
    SLUICE_RETURN_IF_ERROR(
        cuda(cuda_.MemcpyHtoDAsync(lane.staging, payload.data, payload.bytes,
                                   lane.copies),
             "cuMemcpyHtoDAsync"));
    SLUICE_RETURN_IF_ERROR(
        cuda(cuda_.EventRecord(lane.first, lane.copies), "cuEventRecord"));
    SLUICE_RETURN_IF_ERROR(cuda(
        cuda_.StreamWaitEvent(transfers_, lane.first, 0), "cuStreamWaitEvent"));
  }
  if (sends) {
    SLUICE_RETURN_IF_ERROR(Lost(Settle(
        nccl_.Send(data, payload.bytes, nccl::kUint8, 1, comm_, transfers_),
        "ncclSend")));
  } else {
    SLUICE_RETURN_IF_ERROR(Lost(Settle(
        nccl_.Recv(data, payload.bytes, nccl::kUint8, 0, comm_, transfers_),
        "ncclRecv")));
  }
  if (sends || payload.on_device || !IsPinned(payload)) {
    flight.to_be_copied = !sends && !payload.on_device;
    return cuda(cuda_.EventRecord(lane.last, transfers_), "cuEventRecord");
  }
  SLUICE_RETURN_IF_ERROR(
      cuda(cuda_.EventRecord(lane.first, transfers_), "cuEventRecord"));
  SLUICE_RETURN_IF_ERROR(cuda(cuda_.StreamWaitEvent(lane.copies, lane.first, 0),
                              "cuStreamWaitEvent"));
  return CopyOut(payload, lane);
}

bool NcclChannel::IsPinned(const PayloadView& payload) const {
  const auto begin = reinterpret_cast<uintptr_t>(payload.data);
  for (const uintptr_t address : {begin, begin + payload.bytes - 1}) {
    unsigned type = 0;
    if (cuda_.PointerGetAttribute(&type, cuda::kPointerMemoryType, address) !=
            cuda::kSuccess ||
        type != cuda::kMemoryTypeHost) {
      return false;
    }
  }
  return true;
}

absl::Status NcclChannel::CopyOut(const PayloadView& payload, Lane& lane) {
  SLUICE_RETURN_IF_ERROR(
      library_->CudaStatus(cuda_.MemcpyDtoHAsync(payload.data, lane.staging,
                                                 payload.bytes, lane.copies),
                           "cuMemcpyDtoHAsync"));
  return library_->CudaStatus(cuda_.EventRecord(lane.last, lane.copies),
                              "cuEventRecord");
}

absl::StatusOr<bool> NcclChannel::Land() {
  Flight& oldest = flights_.front();
  if (oldest.lane < 0) return true;
  Lane& lane = lanes_[oldest.lane];
  int result = cuda_.EventQuery(lane.last);
  if (result == cuda::kSuccess && std::exchange(oldest.to_be_copied, false)) {
    SLUICE_RETURN_IF_ERROR(CopyOut(oldest.item.payload, lane));
    result = cuda_.EventQuery(lane.last);
  }
  if (result == cuda::kNotReady) return false;
  SLUICE_RETURN_IF_ERROR(library_->CudaStatus(result, "cuEventQuery"));
  return true;
}

void NcclChannel::GiveBack() {
  // Errors here cannot be handled: they are logged, and the rest is freed.
  absl::Status worst;
  // ncclCommFinalize is not used, as it waits for the other end.
  if (comm_ != nullptr) {
    worst.Update(library_->NcclStatus(
        nccl_.CommAbort(std::exchange(comm_, nullptr)), "ncclCommAbort"));
  }
  // Waits until the device no longer uses the flights' memory.
  for (cuda::Stream** stream :
       {&transfers_, &lanes_[0].copies, &lanes_[1].copies}) {
    if (*stream == nullptr) continue;
    worst.Update(library_->CudaStatus(cuda_.StreamSynchronize(*stream),
                                      "cuStreamSynchronize"));
    worst.Update(library_->CudaStatus(
        cuda_.StreamDestroy(std::exchange(*stream, nullptr)),
        "cuStreamDestroy"));
  }
  for (Lane& lane : lanes_) {
    for (cuda::Event* event : {lane.first, lane.last}) {
      if (event == nullptr) continue;
      worst.Update(
          library_->CudaStatus(cuda_.EventDestroy(event), "cuEventDestroy"));
    }
    if (lane.staging != 0) {
      worst.Update(
          library_->CudaStatus(cuda_.MemFree(lane.staging), "cuMemFree"));
    }
    lane = Lane();
  }
  if (!worst.ok()) {
    LogWarning("closing an NCCL link: ", worst.message());
  }
}

}  // namespace sluice
