#include "worker/link/nccl_transport.h"

#include <list>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "worker/link/nccl_channel.h"
#include "worker/link/nccl_library.h"

namespace sluice {
namespace {

class NcclTransport : public PayloadTransport {
 public:
  explicit NcclTransport(std::unique_ptr<const NcclLibrary> library)
      : library_(std::move(library)) {}

  ~NcclTransport() override {
    std::list<Playing> playing;
    {
      MutexLock lock(&mu_);
      playing.swap(playing_);
    }
    for (Playing& p : playing) p.channel->Stop();
    playing.clear();  // joins
    if (context_ != nullptr) library_->cuda().DevicePrimaryCtxRelease(device_);
  }

  absl::Status Init(int ordinal) {
    const cuda::Api& cuda = library_->cuda();
    SLUICE_RETURN_IF_ERROR(library_->CudaStatus(cuda.Init(0), "cuInit"));
    int count = 0;
    SLUICE_RETURN_IF_ERROR(
        library_->CudaStatus(cuda.DeviceGetCount(&count), "cuDeviceGetCount"));
    if (ordinal < 0 || ordinal >= count) {
      return FailedPrecondition("there is no GPU ", ordinal,
                                ": the CUDA driver knows ", count);
    }
    SLUICE_RETURN_IF_ERROR(
        library_->CudaStatus(cuda.DeviceGet(&device_, ordinal), "cuDeviceGet"));
    cuda::Uuid uuid;
    SLUICE_RETURN_IF_ERROR(library_->CudaStatus(
        cuda.DeviceGetUuid(&uuid, device_), "cuDeviceGetUuid"));
    uuid_ = absl::StrCat("GPU-", absl::BytesToHexString(absl::string_view(
                                     uuid.bytes, sizeof(uuid.bytes))));
    return library_->CudaStatus(cuda.DevicePrimaryCtxRetain(&context_, device_),
                                "cuDevicePrimaryCtxRetain");
  }

  absl::StatusOr<std::string> NewId() override {
    nccl::UniqueId id;
    SLUICE_RETURN_IF_ERROR(library_->NcclStatus(
        library_->nccl().GetUniqueId(&id), "ncclGetUniqueId"));
    return std::string(id.internal, nccl::kUniqueIdBytes);
  }

  absl::StatusOr<std::shared_ptr<PayloadChannel>> Open(
      ChannelOptions options) override {
    if (options.id.size() != nccl::kUniqueIdBytes) {
      return InvalidArgument("an NCCL id of ", options.id.size(),
                             " bytes, not ", nccl::kUniqueIdBytes);
    }
    const char* const name =
        options.end == End::kSender ? "nccl-send" : "nccl-recv";
    auto channel = std::make_shared<NcclChannel>(library_.get(), context_,
                                                 std::move(options));
    std::list<Playing> done;
    MutexLock lock(&mu_);
    for (auto it = playing_.begin(); it != playing_.end();) {
      const auto here = it++;
      if (here->channel->finished()) done.splice(done.end(), playing_, here);
    }
    playing_.push_back({channel, Thread(name, [channel] { channel->Run(); })});
    // The channel itself lives until its thread is done.
    return std::shared_ptr<PayloadChannel>(
        channel.get(), [channel](PayloadChannel*) { channel->Stop(); });
  }

  size_t StagingBytes(size_t max_bytes) const override {
    return NcclChannel::kLanes * max_bytes;
  }
  std::string gpu_uuid() const override { return uuid_; }
  std::string name() const override {
    return absl::StrCat("NCCL ", library_->version(), " on ", uuid_);
  }

 private:
  struct Playing {
    std::shared_ptr<NcclChannel> channel;
    Thread thread;
  };

  const std::unique_ptr<const NcclLibrary> library_;
  int device_ = 0;
  cuda::Context* context_ = nullptr;
  std::string uuid_;

  Mutex mu_;
  // Finished channels are removed when the next one is opened.
  std::list<Playing> playing_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<PayloadTransport>> CreateNcclTransport(
    const NcclOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<const NcclLibrary> library,
      NcclLibrary::Load(options.nccl_library, options.cuda_library));
  auto transport = std::make_unique<NcclTransport>(std::move(library));
  SLUICE_RETURN_IF_ERROR(transport->Init(options.device));
  return transport;
}

}  // namespace sluice
