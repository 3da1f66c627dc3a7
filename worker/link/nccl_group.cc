#include "worker/link/nccl_group.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "common/threads/mutex.h"
#include "worker/link/nccl_library.h"

namespace sluice {
namespace {

// An exchange that has just begun is polled often.
constexpr absl::Duration kFirstPoll = absl::Microseconds(20);
constexpr absl::Duration kLongestPoll = absl::Microseconds(500);

cuda::DeviceAddress Address(const void* data) {
  return reinterpret_cast<uintptr_t>(data);
}

// Rows on the host or on a device.
struct StagedRows {
  std::byte* data;
  size_t stride;
  bool on_device;
};

class NcclGroup : public CollectiveGroup {
 public:
  explicit NcclGroup(std::unique_ptr<const NcclLibrary> library)
      : library_(std::move(library)) {}
  ~NcclGroup() override;

  absl::Status Init(const std::vector<int>& devices);
  Collective& rank(int rank) override;
  void Abort(const absl::Status& why) override;
  void Reset() override;

 private:
  class Rank;

  // Returns the id and the number of the communicator to be in; the group's
  // error if it has failed.
  absl::Status Join(nccl::UniqueId* id, int64_t* generation);
  absl::Status status() const {
    MutexLock lock(&mu_);
    return status_;
  }

  const std::unique_ptr<const NcclLibrary> library_;
  std::vector<std::unique_ptr<Rank>> ranks_;

  mutable Mutex mu_;
  CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  int64_t generation_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t id_generation_ ABSL_GUARDED_BY(mu_) = 0;  // that id_ was made for
  nccl::UniqueId id_ ABSL_GUARDED_BY(mu_);
};

// One rank's communicator. Its thread makes all calls but that of Abort.
class NcclGroup::Rank : public Collective {
 public:
  Rank(NcclGroup* group, int rank, int ranks)
      : group_(*group),
        library_(*group->library_),
        cuda_(library_.cuda()),
        rank_(rank),
        ranks_(ranks) {}
  ~Rank() override;

  absl::Status Init(int ordinal);
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  absl::Status Gather(const ColumnGather& gather, ComputePool& pool) override;
  // Ends what the rank's exchange waits for.
  void Abort();

 private:
  absl::Status Cuda(int result, absl::string_view call) const {
    return library_.CudaStatus(result, call);
  }
  absl::Status Connect();
  // Makes room on the device, where the caller has none.
  absl::StatusOr<std::byte*> Staging(const ColumnGather& gather, size_t bytes);
  absl::Status Copy(StagedRows from, StagedRows to, size_t bytes, int32_t rows,
                    cuda::Stream* stream);
  // Waits until NCCL has taken the call; an error of the group or of NCCL.
  absl::Status Settle(int result, absl::string_view call);
  // kInProgress, kSuccess, or an error.
  absl::StatusOr<bool> Settled();
  absl::Status AwaitStream();
  // Waits for news, a little longer each time in a row.
  void Pause(absl::Duration* pause);

  NcclGroup& group_;
  const NcclLibrary& library_;
  const cuda::Api& cuda_;
  const int rank_, ranks_;
  int device_ = -1;
  cuda::Context* context_ = nullptr;
  cuda::Stream* stream_ = nullptr;  // for rows in host memory
  cuda::Event* done_ = nullptr;
  cuda::DeviceAddress staging_ = 0;
  size_t staging_bytes_ = 0;
  int64_t generation_ = 0;  // of comm_

  Mutex mu_;  // not held while anything is waited for
  nccl::Comm* comm_ ABSL_GUARDED_BY(mu_) = nullptr;
};

// The ranks use the group.
NcclGroup::~NcclGroup() { ranks_.clear(); }

absl::Status NcclGroup::Init(const std::vector<int>& devices) {
  SLUICE_RETURN_IF_ERROR(
      library_->CudaStatus(library_->cuda().Init(0), "cuInit"));
  int count = 0;
  SLUICE_RETURN_IF_ERROR(library_->CudaStatus(
      library_->cuda().DeviceGetCount(&count), "cuDeviceGetCount"));
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i] < 0 || devices[i] >= count) {
      return FailedPrecondition("there is no GPU ", devices[i],
                                ": the CUDA driver knows ", count);
    }
    ranks_.push_back(std::make_unique<Rank>(this, static_cast<int>(i),
                                            static_cast<int>(devices.size())));
    SLUICE_RETURN_IF_ERROR(ranks_.back()->Init(devices[i]));
  }
  return absl::OkStatus();
}

Collective& NcclGroup::rank(int rank) { return *ranks_[rank]; }

void NcclGroup::Abort(const absl::Status& why) {
  {
    MutexLock lock(&mu_);
    if (status_.ok()) status_ = why;
    changed_.NotifyAll();
  }
  for (const auto& rank : ranks_) rank->Abort();
}

void NcclGroup::Reset() {
  MutexLock lock(&mu_);
  // A sound communicator goes on.
  if (status_.ok()) return;
  status_ = absl::OkStatus();
  ++generation_;
}

absl::Status NcclGroup::Join(nccl::UniqueId* id, int64_t* generation) {
  MutexLock lock(&mu_);
  SLUICE_RETURN_IF_ERROR(status_);
  if (id_generation_ != generation_) {
    SLUICE_RETURN_IF_ERROR(library_->NcclStatus(
        library_->nccl().GetUniqueId(&id_), "ncclGetUniqueId"));
    id_generation_ = generation_;
  }
  *id = id_;
  *generation = generation_;
  return absl::OkStatus();
}

absl::Status NcclGroup::Rank::Init(int ordinal) {
  SLUICE_RETURN_IF_ERROR(
      Cuda(cuda_.DeviceGet(&device_, ordinal), "cuDeviceGet"));
  return Cuda(cuda_.DevicePrimaryCtxRetain(&context_, device_),
              "cuDevicePrimaryCtxRetain");
}

NcclGroup::Rank::~Rank() {
  if (context_ == nullptr) return;
  // Errors here cannot be handled: they are logged, and the rest is freed.
  absl::Status worst = Cuda(cuda_.CtxSetCurrent(context_), "cuCtxSetCurrent");
  Abort();
  if (stream_ != nullptr) {
    worst.Update(Cuda(cuda_.StreamSynchronize(stream_), "cuStreamSynchronize"));
    worst.Update(Cuda(cuda_.StreamDestroy(stream_), "cuStreamDestroy"));
  }
  if (done_ != nullptr) {
    worst.Update(Cuda(cuda_.EventDestroy(done_), "cuEventDestroy"));
  }
  if (staging_ != 0) worst.Update(Cuda(cuda_.MemFree(staging_), "cuMemFree"));
  cuda_.DevicePrimaryCtxRelease(device_);
  if (!worst.ok()) LogWarning("closing an NCCL rank: ", worst.message());
}

void NcclGroup::Rank::Abort() {
  MutexLock lock(&mu_);
  nccl::Comm* const comm = std::exchange(comm_, nullptr);
  if (comm == nullptr) return;
  const absl::Status status =
      library_.NcclStatus(library_.nccl().CommAbort(comm), "ncclCommAbort");
  if (!status.ok()) LogWarning("ending an exchange: ", status.message());
}

void NcclGroup::Rank::Pause(absl::Duration* pause) {
  MutexLock lock(&group_.mu_);
  if (!group_.status_.ok()) return;
  group_.changed_.WaitFor(&group_.mu_, *pause);
  *pause = std::min(2 * *pause, kLongestPoll);
}

absl::StatusOr<bool> NcclGroup::Rank::Settled() {
  SLUICE_RETURN_IF_ERROR(group_.status());
  MutexLock lock(&mu_);
  // Who aborts says why first.
  if (comm_ == nullptr) return absl::AbortedError("the exchange was ended");
  int error = nccl::kSuccess;
  const int asked = library_.nccl().CommGetAsyncError(comm_, &error);
  if (asked != nccl::kSuccess) error = asked;
  if (error == nccl::kInProgress) return false;
  SLUICE_RETURN_IF_ERROR(library_.NcclStatus(error, "ncclCommGetAsyncError"));
  return true;
}

absl::Status NcclGroup::Rank::Settle(int result, absl::string_view call) {
  if (result != nccl::kInProgress) return library_.NcclStatus(result, call);
  absl::Duration pause = kFirstPoll;
  for (;;) {
    SLUICE_ASSIGN_OR_RETURN(const bool settled, Settled());
    if (settled) return absl::OkStatus();
    Pause(&pause);
  }
}

absl::Status NcclGroup::Rank::Connect() {
  nccl::UniqueId id;
  int64_t generation = 0;
  SLUICE_RETURN_IF_ERROR(group_.Join(&id, &generation));
  SLUICE_RETURN_IF_ERROR(
      Cuda(cuda_.CtxSetCurrent(context_), "cuCtxSetCurrent"));
  if (generation == generation_) return absl::OkStatus();
  if (stream_ == nullptr) {
    SLUICE_RETURN_IF_ERROR(
        Cuda(cuda_.StreamCreate(&stream_, cuda::kStreamNonBlocking),
             "cuStreamCreate"));
    SLUICE_RETURN_IF_ERROR(Cuda(
        cuda_.EventCreate(&done_, cuda::kEventDisableTiming), "cuEventCreate"));
  }
  int result = nccl::kSuccess;
  {
    MutexLock lock(&mu_);
    nccl::Config config;
    result =
        library_.nccl().CommInitRankConfig(&comm_, ranks_, id, rank_, &config);
    if (result != nccl::kSuccess && result != nccl::kInProgress) {
      comm_ = nullptr;  // given back by NCCL
    }
  }
  SLUICE_RETURN_IF_ERROR(
      Annotate(Settle(result, "ncclCommInitRankConfig"),
               "NCCL can't connect the ranks (NCCL_DEBUG=INFO says more)"));
  generation_ = generation;
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> NcclGroup::Rank::Staging(const ColumnGather& gather,
                                                    size_t bytes) {
  if (gather.staging != nullptr) {
    if (gather.staging_bytes >= bytes) return gather.staging;
    return Internal("an exchange of ", bytes, " bytes with room for ",
                    gather.staging_bytes);
  }
  if (staging_bytes_ < bytes) {
    if (staging_ != 0) {
      SLUICE_RETURN_IF_ERROR(
          Cuda(cuda_.MemFree(std::exchange(staging_, 0)), "cuMemFree"));
      staging_bytes_ = 0;
    }
    SLUICE_RETURN_IF_ERROR(
        Cuda(cuda_.MemAlloc(&staging_, bytes), "cuMemAlloc"));
    staging_bytes_ = bytes;
  }
  return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(staging_));
}

absl::Status NcclGroup::Rank::Copy(StagedRows from, StagedRows to, size_t bytes,
                                   int32_t rows, cuda::Stream* stream) {
  cuda::Copy2D copy;
  copy.source_type =
      from.on_device ? cuda::kMemoryTypeDevice : cuda::kMemoryTypeHost;
  copy.source_host = from.on_device ? nullptr : from.data;
  copy.source_device = from.on_device ? Address(from.data) : 0;
  copy.source_pitch = from.stride;
  copy.to_type = to.on_device ? cuda::kMemoryTypeDevice : cuda::kMemoryTypeHost;
  copy.to_host = to.on_device ? nullptr : to.data;
  copy.to_device = to.on_device ? Address(to.data) : 0;
  copy.to_pitch = to.stride;
  copy.width_bytes = bytes;
  copy.height = rows;
  return Cuda(cuda_.Memcpy2DAsync(&copy, stream), "cuMemcpy2DAsync");
}

absl::Status NcclGroup::Rank::AwaitStream() {
  SLUICE_RETURN_IF_ERROR(
      Cuda(cuda_.EventRecord(done_, stream_), "cuEventRecord"));
  absl::Duration pause = kFirstPoll;
  for (;;) {
    const int result = cuda_.EventQuery(done_);
    // What an aborted exchange left is no result.
    SLUICE_RETURN_IF_ERROR(Settled().status());
    if (result == cuda::kSuccess) return absl::OkStatus();
    if (result != cuda::kNotReady) return Cuda(result, "cuEventQuery");
    Pause(&pause);
  }
}

absl::Status NcclGroup::Rank::Gather(const ColumnGather& gather,
                                     ComputePool& pool) {
  const auto width = [&](int rank) {
    return gather.bounds[rank + 1] - gather.bounds[rank];
  };
  if (gather.bounds.size() != static_cast<size_t>(ranks_) + 1) {
    return Internal("a row is cut at ", gather.bounds.size(),
                    " bounds for a group of ", ranks_);
  }
  SLUICE_RETURN_IF_ERROR(Connect());
  // All parts have the room of the greatest.
  size_t part = 0;
  for (int rank = 0; rank < ranks_; ++rank) part = std::max(part, width(rank));
  part *= gather.rows;
  if (part == 0) return absl::OkStatus();
  const bool on_device = gather.stream != nullptr;
  cuda::Stream* const stream =
      on_device ? static_cast<cuda::Stream*>(gather.stream) : stream_;
  SLUICE_ASSIGN_OR_RETURN(std::byte* const staging,
                          Staging(gather, part * ranks_));
  const auto staged = [&](int rank) -> StagedRows {
    return {staging + rank * part, width(rank), true};
  };
  if (width(rank_) > 0) {
    // The source is only read.
    const StagedRows own = {const_cast<std::byte*>(gather.from),
                            gather.from_stride, on_device};
    SLUICE_RETURN_IF_ERROR(
        Copy(own, staged(rank_), width(rank_), gather.rows, stream));
  }
  int result = nccl::kSuccess;
  {
    SLUICE_RETURN_IF_ERROR(group_.status());
    MutexLock lock(&mu_);
    if (comm_ == nullptr) return absl::AbortedError("the exchange was ended");
    result = library_.nccl().AllGather(staged(rank_).data, staging, part,
                                       nccl::kUint8, comm_, stream);
  }
  SLUICE_RETURN_IF_ERROR(Settle(result, "ncclAllGather"));
  // A copy to host memory that is not pinned would wait for the others.
  if (!on_device) SLUICE_RETURN_IF_ERROR(AwaitStream());
  const bool gets =
      gather.to_rank == ColumnGather::kAllRanks || gather.to_rank == rank_;
  for (int rank = 0; gets && rank < ranks_; ++rank) {
    std::byte* const to = gather.to + gather.bounds[rank];
    if (width(rank) == 0 || (rank == rank_ && gather.from == to)) continue;
    SLUICE_RETURN_IF_ERROR(Copy(staged(rank), {to, gather.to_stride, on_device},
                                width(rank), gather.rows, stream));
  }
  return on_device ? absl::OkStatus() : AwaitStream();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CollectiveGroup>> CreateNcclGroup(
    const NcclGroupOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<const NcclLibrary> library,
      NcclLibrary::Load(options.nccl_library, options.cuda_library));
  auto group = std::make_unique<NcclGroup>(std::move(library));
  SLUICE_RETURN_IF_ERROR(group->Init(options.devices));
  return group;
}

}  // namespace sluice
