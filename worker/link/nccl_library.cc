#include "worker/link/nccl_library.h"

#include "absl/strings/str_cat.h"
#include "common/host/shared_library.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr char kNccl[] = "NCCL (--nccl-library)";

// Checks that a library is loaded and has all functions. `what` names it and
// its flag.
absl::Status Check(const SharedLibrary& library, const std::string& path,
                   absl::string_view what) {
  if (!library.loaded()) {
    return NotFound("can't load ", what, ": ", library.error());
  }
  if (library.missing().empty()) return absl::OkStatus();
  return FailedPrecondition(path, " has no ", library.missing(),
                            ": it is too old, or something else");
}

// NCCL_VERSION_CODE: X * 1000 + Y * 100 + Z before 2.9, X * 10000 since.
std::string VersionText(int code) {
  const int major = code < 10000 ? code / 1000 : code / 10000;
  const int rest = code < 10000 ? code % 1000 : code % 10000;
  return absl::StrCat(major, ".", rest / 100, ".", rest % 100);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const NcclLibrary>> NcclLibrary::Load(
    const std::string& nccl_path, const std::string& cuda_path) {
  auto library = std::unique_ptr<NcclLibrary>(new NcclLibrary());

  // CUDA is loaded first, as libnccl is of no use without it.
  SharedLibrary cuda(cuda_path);
  cuda::Api& c = library->cuda_;
  cuda.Take("cuInit", &c.Init);
  cuda.Take("cuDeviceGetCount", &c.DeviceGetCount);
  cuda.Take("cuDeviceGet", &c.DeviceGet);
  cuda.Take("cuDeviceGetUuid", &c.DeviceGetUuid);
  cuda.Take("cuDevicePrimaryCtxRetain", &c.DevicePrimaryCtxRetain);
  cuda.Take("cuDevicePrimaryCtxRelease_v2", &c.DevicePrimaryCtxRelease);
  cuda.Take("cuCtxSetCurrent", &c.CtxSetCurrent);
  cuda.Take("cuMemAlloc_v2", &c.MemAlloc);
  cuda.Take("cuMemFree_v2", &c.MemFree);
  cuda.Take("cuMemcpyHtoDAsync_v2", &c.MemcpyHtoDAsync);
  cuda.Take("cuMemcpyDtoHAsync_v2", &c.MemcpyDtoHAsync);
  cuda.Take("cuMemcpy2DAsync_v2", &c.Memcpy2DAsync);
  cuda.Take("cuStreamCreate", &c.StreamCreate);
  cuda.Take("cuStreamDestroy_v2", &c.StreamDestroy);
  cuda.Take("cuStreamSynchronize", &c.StreamSynchronize);
  cuda.Take("cuStreamWaitEvent", &c.StreamWaitEvent);
  cuda.Take("cuEventCreate", &c.EventCreate);
  cuda.Take("cuEventDestroy_v2", &c.EventDestroy);
  cuda.Take("cuEventRecord", &c.EventRecord);
  cuda.Take("cuEventQuery", &c.EventQuery);
  cuda.Take("cuPointerGetAttribute", &c.PointerGetAttribute);
  cuda.Take("cuGetErrorString", &c.GetErrorString);
  SLUICE_RETURN_IF_ERROR(
      Check(cuda, cuda_path, "the CUDA driver (--cuda-library)"));

  SharedLibrary nccl(nccl_path);
  nccl::Api& n = library->nccl_;
  nccl.Take("ncclGetVersion", &n.GetVersion);
  nccl.Take("ncclGetErrorString", &n.GetErrorString);
  SLUICE_RETURN_IF_ERROR(Check(nccl, nccl_path, kNccl));
  int version = 0;
  SLUICE_RETURN_IF_ERROR(
      library->NcclStatus(n.GetVersion(&version), "ncclGetVersion"));
  library->version_ = VersionText(version);
  if (version < nccl::kOldestVersion) {
    return FailedPrecondition(nccl_path, " is NCCL ", library->version_,
                              "; links need 2.14 or later");
  }
  nccl.Take("ncclGetUniqueId", &n.GetUniqueId);
  nccl.Take("ncclCommInitRankConfig", &n.CommInitRankConfig);
  nccl.Take("ncclCommAbort", &n.CommAbort);
  nccl.Take("ncclCommGetAsyncError", &n.CommGetAsyncError);
  nccl.Take("ncclSend", &n.Send);
  nccl.Take("ncclRecv", &n.Recv);
  nccl.Take("ncclAllGather", &n.AllGather);
  SLUICE_RETURN_IF_ERROR(Check(nccl, nccl_path, kNccl));
  return library;
}

absl::Status NcclLibrary::NcclStatus(int result, absl::string_view call) const {
  if (result == nccl::kSuccess) return absl::OkStatus();
  const char* text = nccl_.GetErrorString(result);
  const std::string message = absl::StrCat(
      call, ": ", text != nullptr ? text : "unknown error", " (", result, ")");
  return result == nccl::kRemoteError ? absl::UnavailableError(message)
                                      : absl::InternalError(message);
}

absl::Status NcclLibrary::CudaStatus(int result, absl::string_view call) const {
  if (result == cuda::kSuccess) return absl::OkStatus();
  const char* text = nullptr;
  cuda_.GetErrorString(result, &text);
  return Internal(call, ": ", text != nullptr ? text : "unknown error", " (",
                  result, ")");
}

}  // namespace sluice
