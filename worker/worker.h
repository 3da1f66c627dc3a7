#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/host/logging.h"
#include "common/machine_profile.h"
#include "common/metrics/metrics.h"
#include "runtime/kernels/device_choice.h"
#include "runtime/trace/trace.h"
#include "worker/channel_factory.h"
#include "worker/link/link_choice.h"
#include "worker/runtime_report.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace sluice {

// A worker: attaches to a coordinator, loads the layers it is told to, runs
// steps, and hands activations on. When the coordinator goes away it keeps its
// weights and attaches again, until Shutdown. When its device is lost it says
// so and takes its leave. Thread-safe.
class Worker {
 public:
  struct Options {
    std::string name;  // unique among live workers
    std::filesystem::path model_dir;
    std::string coordinator_address;
    // Where others reach link_service(). If "", as when the server's port is
    // not known yet, nothing is attached before Announce().
    std::string link_address;
    std::string metrics_address;     // for display; "" if none
    uint64_t host_memory_bytes = 0;  // hard budget for weights, KV, workspace
    // What computes, and, where that has memory of its own, the hard budget for
    // it; 0 otherwise.
    DeviceChoice device;
    uint64_t device_memory_bytes = 0;
    // Where weight images and KV cache may be kept; made if it is not there.
    // "": no disk tier. Workers may share one.
    std::string disk_dir;
    uint64_t disk_space_bytes = 0;  // hard budget; 0: DefaultDiskSpace
    bool dummy_weights = false;     // random ones: config.json is enough
    // Whether the model's files are hashed, for the coordinator to compare them
    // with others'; not where all workers read the same files. What was found
    // out is kept in the file `hash_cache`; "": nowhere.
    bool hash_model = true;
    std::string hash_cache;
    int32_t compute_threads = 0;  // 0: all cores
    // Pins each compute thread to a core of its own, if there are as many
    // threads as cores. Not for workers that share cores.
    bool pin_threads = false;
    // What carries activations to the stages next to this one, and where NCCL
    // and CUDA are looked for (as dlopen does).
    LinkChoice link = LinkChoice::kAuto;
    std::string nccl_library = "libnccl.so.2";
    std::string cuda_library = "libcuda.so.1";
    // What was measured here, for the coordinator to plan by; null: nothing.
    // Goes out under this worker's name.
    std::shared_ptr<const MachineProfile> profile;
    ChannelFactory channels;
    MetricsRegistry* metrics = nullptr;  // if set, must outlive the worker
    Tracer* tracer = nullptr;            // the same
    absl::Duration reconnect_delay = absl::Milliseconds(500);
    // Of what is logged when a stage fails. The coordinator is told in any
    // case: where it has the same log, once is enough.
    LogLevel failure_level = LogLevel::kError;
    absl::Status Validate() const;
  };

  // Opens the model directory (its errors are returned) and starts to attach.
  // The server of link_service() is one of proto/grpc_endpoint.h.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(Options options);
  virtual ~Worker() = default;

  // LinkService, to be registered with this worker's server. Owned by the
  // worker, which must outlive the server's Shutdown.
  virtual grpc::Service* link_service() = 0;

  // Says where link_service() is reached, and starts to attach. No effect if
  // the options said so already.
  virtual void Announce(const std::string& link_address) = 0;

  // What was measured here since Create, instead of Options::profile. No effect
  // after Announce().
  virtual void SetProfile(std::shared_ptr<const MachineProfile> profile) = 0;

  // True while attached to a coordinator, with a stage that is loaded. A spare
  // worker is not ready.
  virtual bool ready() const = 0;

  // OK, or why this worker has left its coordinator and will not come back: its
  // device is lost to this process, and only another one can be of use.
  virtual absl::Status health() const = 0;

  // As of the last step.
  virtual RuntimeReport report() const = 0;

  // Leaves the coordinator and ends all threads. Called by the destructor too.
  virtual void Shutdown() = 0;
};

}  // namespace sluice
