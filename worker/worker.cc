#include "worker/worker.h"

#include <memory>
#include <utility>

#include "common/codec/profile_json.h"
#include "common/host/logging.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "runtime/exec/stage_executor.h"
#include "runtime/exec/weights/image_store.h"
#include "runtime/model/model_dir.h"
#include "worker/machine.h"
#include "worker/worker_impl.h"

namespace sluice {

absl::Status Worker::Options::Validate() const {
  if (name.empty()) {
    return absl::InvalidArgumentError("worker: name is empty");
  }
  if (model_dir.empty()) {
    return absl::InvalidArgumentError("worker: no model directory");
  }
  if (coordinator_address.empty()) {
    return absl::InvalidArgumentError("worker: no coordinator address");
  }
  if (host_memory_bytes == 0) {
    return absl::InvalidArgumentError("worker: no host memory");
  }
  if (device.has_memory() && device_memory_bytes == 0) {
    return absl::InvalidArgumentError(
        "worker: this device has memory of its own: say how much of it with "
        "--device-memory");
  }
  if (!device.has_memory() && device_memory_bytes > 0) {
    return absl::InvalidArgumentError(
        "worker: --device-memory is for devices with memory of their own; the "
        "CPU's is --host-memory");
  }
  if (compute_threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker: ", compute_threads, " compute threads"));
  }
  if (channels == nullptr) {
    return absl::InvalidArgumentError("worker: no channel factory");
  }
  if (reconnect_delay <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("worker: reconnect_delay must be > 0");
  }
  if (disk_dir.empty() && disk_space_bytes > 0) {
    return absl::InvalidArgumentError("worker: disk space, but no directory");
  }
  if (profile != nullptr) {
    const size_t bytes = ProfileToJson(*profile).size();
    if (bytes > kMaxProfileBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "worker: the profile of this machine takes ", bytes,
          " bytes; at most ", kMaxProfileBytes,
          " can be told to a coordinator. Leave out links, or have it measured "
          "anew with `sluice profile`"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(Options options) {
  SLUICE_RETURN_IF_ERROR(CheckDevice(options.device));
  SLUICE_RETURN_IF_ERROR(options.Validate());
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<ModelDir> opened,
                          ModelDir::Open(options.model_dir));
  const std::shared_ptr<const ModelDir> dir = std::move(opened);
  WorkerModel model;
  SLUICE_ASSIGN_OR_RETURN(
      model.content,
      ContentCheck::Start({.model = dir,
                           .dummy_weights = options.dummy_weights,
                           .hash = options.hash_model,
                           .cache_file = options.hash_cache}));
  if (!options.disk_dir.empty()) {
    absl::Status made = MakeDiskDir(options.disk_dir);
    if (made.ok() && options.disk_space_bytes == 0) {
      absl::StatusOr<uint64_t> space = DefaultDiskSpace(options.disk_dir);
      made = space.status();
      options.disk_space_bytes = space.value_or(0);
    }
    if (!made.ok()) return Annotate(made, "--disk-dir");
    ImageStore::RemoveOrphans(options.disk_dir);
  }
  model.hidden_size = dir->spec().hidden_size;
  model.num_layers = dir->spec().num_layers;
  model.loader = [dir, content = model.content](
                     const StageExecutor::Options& stage,
                     const StageExecutor::Progress& progress,
                     const std::atomic<bool>* cancelled)
      -> absl::StatusOr<std::unique_ptr<StageExecutor>> {
    // What is loaded is what was compared.
    SLUICE_RETURN_IF_ERROR(content->Verify());
    SLUICE_ASSIGN_OR_RETURN(
        std::unique_ptr<StageExecutor> executor,
        StageExecutor::Load(*dir, stage, progress, cancelled));
    SLUICE_RETURN_IF_ERROR(content->Verify());
    return executor;
  };
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<PayloadTransport> payloads,
      OpenPayloads(options.link, options.device, options.nccl_library,
                   options.cuda_library));
  if (payloads != nullptr) {
    LogInfo(absl::StrCat("links may go by ", payloads->name()));
  }
  return CreateWorker(std::move(options), std::move(model),
                      std::move(payloads));
}

}  // namespace sluice
