#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/link/nccl_abi.h"

namespace sluice {

// libnccl and libcuda, loaded at run time. They stay loaded until the process
// ends: neither can be unloaded. Immutable, thread-safe.
class NcclLibrary {
 public:
  // kNotFound: a library can't be loaded; kFailedPrecondition: it lacks a
  // function, or is older than NCCL 2.14. The message says what to do.
  static absl::StatusOr<std::unique_ptr<const NcclLibrary>> Load(
      const std::string& nccl_path, const std::string& cuda_path);

  const nccl::Api& nccl() const { return nccl_; }
  const cuda::Api& cuda() const { return cuda_; }
  // The version, as "2.28.9".
  const std::string& version() const { return version_; }

  // Make a Status of a call's result, with the library's own words. For NCCL:
  // kUnavailable if the other end is gone, else kInternal; for CUDA: kInternal.
  // kInProgress and kNotReady are errors here.
  absl::Status NcclStatus(int result, absl::string_view call) const;
  absl::Status CudaStatus(int result, absl::string_view call) const;

 private:
  NcclLibrary() = default;
  nccl::Api nccl_ = {};
  cuda::Api cuda_ = {};
  std::string version_;
};

}  // namespace sluice
