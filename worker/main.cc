// The `sluice-worker` program.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <climits>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/host/logging.h"
#include "common/host/start_check.h"
#include "common/machine_profile.h"
#include "common/metrics/metrics_server.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/threads/thread.h"
#include "common/version.h"
#include "runtime/memory/host_memory.h"
#include "runtime/model/model_dir.h"
#include "server/flags/checks.h"
#include "server/flags/command_line.h"
#include "worker/link/link_server.h"
#include "worker/probe/worker_profile.h"
#include "worker/worker.h"

namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
// Beside those that compute.
constexpr int kThreads = 24;
constexpr size_t kAddressBytes = size_t{128} << 20;
// How often grpc.health.v1 learns whether the worker is ready.
constexpr timespec kTick = {.tv_sec = 0, .tv_nsec = 200'000'000};

struct Flags {
  std::string coordinator = "127.0.0.1:7070", model, host = "127.0.0.1",
              advertise, name, host_memory, log_level = "info", disk_dir,
              disk_space, load_format = "auto", trace, device = "cpu",
              device_memory, profile, link = "auto",
              nccl_library = "libnccl.so.2", cuda_library = "libcuda.so.1";
  int port = sluice::kLinkPort, metrics_port = sluice::kWorkerMetricsPort,
      threads = 0;
  bool no_profile = false;
};

void AddFlags(CLI::App& app, Flags& f) {
  app.add_option("--coordinator", f.coordinator, "the coordinator's host:port")
      ->check(sluice::Utf8Text())
      ->capture_default_str()
      ->group(sluice::kMainGroup)
      ->envname("SLUICE_COORDINATOR");
  app.add_option("--model", f.model, "model directory, with weights")
      ->required()
      ->group(sluice::kMainGroup)
      ->type_name("DIR")
      ->envname("SLUICE_MODEL");
  app.add_option("--host", f.host,
                 "address to listen on, for other workers and metrics")
      ->capture_default_str()
      ->group(sluice::kMainGroup);
  app.add_option("--port", f.port, "gRPC port; 0: any free one")
      ->check(sluice::From(0, 65535))
      ->capture_default_str();
  app.add_option("--advertise", f.advertise,
                 "host or host:port under which other workers reach this one; "
                 "default: --host, or the host's name if that is a wildcard")
      ->check(sluice::Utf8Text())
      ->group(sluice::kMainGroup);
  app.add_option("--name", f.name,
                 "unique among live workers; default: host name and pid")
      ->check(sluice::Utf8Text());
  app.add_option("--device", f.device,
                 "what computes: cpu; cuda, the first GPU, or cuda:N; "
                 "cpu-discrete, for tests: the CPU with device memory of its "
                 "own")
      ->capture_default_str();
  app.add_option("--device-memory", f.device_memory,
                 "most memory of the device, as 20GiB, if it has its own; "
                 "default: what a GPU has free, but for about 1 GiB");
  app.add_option("--link", f.link,
                 "what carries activations from worker to worker: grpc; nccl, "
                 "from GPU to GPU, or nothing; or auto: nccl between workers "
                 "that compute on GPUs and have libnccl")
      ->check(CLI::IsMember({"auto", "grpc", "nccl"}))
      ->capture_default_str();
  app.add_option("--nccl-library", f.nccl_library,
                 "where NCCL is, if not where the system looks")
      ->capture_default_str();
  app.add_option("--cuda-library", f.cuda_library,
                 "where the CUDA driver is, if not where the system looks")
      ->capture_default_str();
  app.add_option("--host-memory", f.host_memory,
                 "most memory for weights, KV cache and activations, as 8GiB; "
                 "default: 75 % of what is available")
      ->group(sluice::kMainGroup)
      ->type_name("SIZE");
  app.add_option("--disk-dir", f.disk_dir,
                 "where weights and KV cache that don't fit into memory are "
                 "kept; default: nowhere");
  app.add_option("--disk-space", f.disk_space,
                 "hard budget on disk, as 100GiB; default: 90 % of what is "
                 "free or holds weights already");
  app.add_option("--load-format", f.load_format,
                 "auto, or dummy: random weights, for which config.json is "
                 "enough")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  auto* profile =
      app.add_option("--profile", f.profile,
                     "profile of this machine, as `sluice profile -o FILE` "
                     "writes it; default: measured at the first start, in 20 "
                     "to 30 s, and kept in --disk-dir or ~/.cache/sluice");
  app.add_flag("--no-profile", f.no_profile,
               "do without a profile: the coordinator cannot plan for this "
               "worker")
      ->excludes(profile);
  app.add_option("--trace", f.trace,
                 "write a timeline (Chrome trace, for Perfetto) here at the "
                 "end");
  app.add_option("--threads", f.threads,
                 "threads that compute; 0: one for each core")
      ->check(sluice::AtLeast(0))
      ->capture_default_str();
  app.add_option("--metrics-port", f.metrics_port,
                 "Prometheus port; 0: any free one")
      ->check(sluice::From(0, 65535))
      ->capture_default_str();
  app.add_option("--log-level", f.log_level, "debug, info, warning or error")
      ->capture_default_str()
      ->envname("SLUICE_LOG_LEVEL");
  app.set_version_flag("-V,--version", sluice::BuildVersion());
  app.footer(
      "Examples:\n"
      "  sluice-worker --model ./llama\n"
      "  sluice-worker --model ./llama --coordinator head:7070 "
      "--host 0.0.0.0 --host-memory 48GiB");
}

bool IsLoopback(const std::string& host) {
  return host.rfind("127.", 0) == 0 || host == "localhost" || host == "::1" ||
         host == "[::1]";
}

bool IsWildcard(const std::string& host) {
  return host == "0.0.0.0" || host == "::" || host == "[::]";
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

std::string AdvertisedHost(const Flags& f) {
  if (!f.advertise.empty()) return f.advertise;
  return IsWildcard(f.host) ? HostName() : f.host;
}

// "host" or "host:port" (IPv6 in brackets, if with a port).
std::string WithPort(const std::string& host, int port) {
  const size_t colon = host.rfind(':');
  const bool has_port =
      colon != std::string::npos &&
      (host.find(':') == colon || (colon > 0 && host[colon - 1] == ']'));
  return has_port ? host : sluice::JoinHostPort(host, port);
}

// The profile of this machine, measured if there is none yet; null if that
// can't be done. kCancelled if a signal comes meanwhile.
absl::StatusOr<std::shared_ptr<const sluice::MachineProfile>> MeasuredProfile(
    const sluice::ProfilerOptions& machine, const sigset_t& signals) {
  using sluice::MachineProfile;
  std::atomic<bool> cancelled{false}, done{false};
  absl::StatusOr<MachineProfile> profile = absl::UnknownError("not measured");
  double told = -1;
  sluice::Thread thread("profiling", [&] {
    profile = sluice::CachedProfile(
        sluice::ProfileCacheOf(machine),
        [&](absl::string_view what, double share) {
          constexpr double kTell = 0.2;  // of the whole
          if (told >= 0 && share < told + kTell) return;
          sluice::LogInfo(absl::StrCat(
              "measuring this machine (once; --no-profile to do without): ",
              static_cast<int>(100 * share), " %, ", what));
          told = share;
        },
        &cancelled);
    done = true;
  });
  int signal = 0;
  while (!done) {
    signal = sigtimedwait(&signals, nullptr, &kTick);
    if (signal > 0) cancelled = true;
  }
  thread.Join();
  if (absl::IsCancelled(profile.status())) return profile.status();
  if (!profile.ok()) {
    sluice::LogWarning(absl::StrCat("no profile of this machine: ",
                                    std::string(profile.status().message())));
    return nullptr;
  }
  return std::make_shared<const MachineProfile>(*std::move(profile));
}

absl::Status Serve(const Flags& f, const sigset_t& signals) {
  sluice::Worker::Options options;
  options.name =
      f.name.empty() ? absl::StrCat(HostName(), "-", getpid()) : f.name;
  options.model_dir = f.model;
  options.coordinator_address =
      sluice::WithDefaultPort(f.coordinator, sluice::kCoordinatorPort);
  options.compute_threads = f.threads;
  options.channels = sluice::TcpChannels();
  SLUICE_ASSIGN_OR_RETURN(options.host_memory_bytes,
                          sluice::ParseHostMemory(f.host_memory));
  SLUICE_ASSIGN_OR_RETURN(options.device, sluice::ParseDevice(f.device));
  // What is wrong with these shows before the time that measuring takes.
  SLUICE_RETURN_IF_ERROR(sluice::CheckDevice(options.device));
  SLUICE_ASSIGN_OR_RETURN(
      options.device_memory_bytes,
      sluice::ParseDeviceMemory(options.device, f.device_memory));
  SLUICE_ASSIGN_OR_RETURN(options.link, sluice::ParseLinkChoice(f.link));
  options.nccl_library = f.nccl_library;
  options.cuda_library = f.cuda_library;
  options.pin_threads = true;
  options.disk_dir = f.disk_dir;
  options.dummy_weights = f.load_format == "dummy";
  if (const std::string cache = sluice::ProfileCacheDir(f.disk_dir);
      !cache.empty()) {
    options.hash_cache = cache + "/content-hashes";
  }
  if (!f.disk_space.empty()) {
    if (f.disk_dir.empty()) {
      return absl::InvalidArgumentError("--disk-space needs a --disk-dir");
    }
    absl::StatusOr<uint64_t> bytes = sluice::ParseByteSize(f.disk_space);
    if (!bytes.ok()) return sluice::Annotate(bytes.status(), "--disk-space");
    options.disk_space_bytes = *bytes;
  }
  SLUICE_RETURN_IF_ERROR(options.Validate());
  SLUICE_RETURN_IF_ERROR(sluice::OpenPayloads(options.link, options.device,
                                              options.nccl_library,
                                              options.cuda_library)
                             .status());
  SLUICE_RETURN_IF_ERROR(sluice::ModelDir::Open(options.model_dir).status());
  SLUICE_ASSIGN_OR_RETURN(const sluice::ProfilerOptions machine,
                          sluice::ProfilerOptionsOf(options));
  if (!f.profile.empty()) {
    absl::StatusOr<sluice::MachineProfile> read =
        sluice::ReadWorkerProfile(f.profile, machine);
    if (!read.ok()) return sluice::Annotate(read.status(), "--profile");
    options.profile =
        std::make_shared<const sluice::MachineProfile>(*std::move(read));
  }
  const bool measure = options.profile == nullptr && !f.no_profile;
  std::unique_ptr<sluice::Tracer> tracer;
  if (!f.trace.empty()) {
    tracer = std::make_unique<sluice::Tracer>(
        sluice::Tracer::Options{.process_name = options.name});
    // What can't be written shows before the work.
    SLUICE_RETURN_IF_ERROR(
        sluice::Annotate(tracer->WriteJson(f.trace), "--trace"));
    options.tracer = tracer.get();
  }
  SLUICE_ASSIGN_OR_RETURN(auto metrics,
                          sluice::MetricsServer::Start(f.host, f.metrics_port));
  sluice::SetBuildInfo(metrics->registry(), sluice::DeviceName(options.device));
  options.metrics = metrics->registry();
  options.metrics_address = metrics->address();
  if (IsWildcard(f.host)) {  // which is no address for others
    const size_t colon = metrics->address().rfind(':');
    options.metrics_address =
        absl::StrCat(HostName(), metrics->address().substr(colon));
  }
  const uint64_t memory = options.host_memory_bytes;
  const std::string device =
      options.device.has_memory()
          ? absl::StrCat(" device=\"", sluice::DescribeDevice(options.device),
                         "\" device_memory=", options.device_memory_bytes >> 20,
                         " MiB")
          : "";
  const std::string name = options.name;
  SLUICE_ASSIGN_OR_RETURN(auto worker,
                          sluice::Worker::Create(std::move(options)));
  auto started =
      sluice::LinkServer::Start(f.host, f.port, worker->link_service());
  if (!started.ok()) {
    return absl::Status(
        started.status().code(),
        absl::StrCat(started.status().message(),
                     "; several workers on a machine need ports of their own: "
                     "--port 0 and --metrics-port 0 take any free ones"));
  }
  const std::unique_ptr<sluice::LinkServer> server = *std::move(started);
  if (!IsLoopback(f.host)) {
    sluice::LogWarning(absl::StrCat(
        "listening on ", f.host,
        " without TLS or authentication: anyone who reaches this port can "
        "feed this worker activations"));
  }
  const std::string link_address = WithPort(AdvertisedHost(f), server->port());
  sluice::LogInfo(absl::StrCat("worker=", name, " link=", link_address,
                               " memory=", memory >> 20, " MiB", device));
  metrics->SetReady(absl::UnavailableError("no stage is loaded"));
  // Scripts that start a worker on port 0 read this line.
  std::cout << "listening on " << sluice::JoinHostPort(f.host, server->port())
            << ", metrics on http://" << metrics->address() << "/metrics"
            << std::endl;
  // Ports, health and metrics are there while it measures.
  if (measure) {
    auto profile = MeasuredProfile(machine, signals);
    if (absl::IsCancelled(profile.status())) {
      worker->Shutdown();
      server->Shutdown();
      return absl::OkStatus();
    }
    SLUICE_RETURN_IF_ERROR(profile.status());
    worker->SetProfile(*std::move(profile));
  }
  worker->Announce(link_address);
  bool serving = false;
  int signal;
  absl::Status health;
  while ((signal = sigtimedwait(&signals, nullptr, &kTick)) < 0) {
    health = worker->health();
    if (!health.ok()) break;
    if (worker->ready() == serving) continue;
    serving = !serving;
    server->SetServing(serving);
    metrics->SetReady(serving ? absl::OkStatus()
                              : absl::UnavailableError("no stage is loaded"));
  }
  sluice::LogInfo(health.ok()
                      ? absl::StrCat("signal ", signal, ": shutting down")
                      : "shutting down, for another process to take over");
  // A second one ends the process at once.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  server->SetServing(false);
  metrics->SetReady(absl::UnavailableError("shutting down"));
  worker->Shutdown();
  server->Shutdown();
  if (tracer != nullptr) {
    health.Update(sluice::Annotate(tracer->WriteJson(f.trace), "--trace"));
  }
  return health;
}

}  // namespace

int main(int argc, char** argv) {
  // Blocked before any thread starts, so that only sigtimedwait takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  CLI::App app{
      "Sluice's worker: computes some of a model's layers for a coordinator",
      "sluice-worker"};
  Flags flags;
  AddFlags(app, flags);
  sluice::AddEnvironmentTwins(&app, "SLUICE_WORKER_");
  if (const auto code = sluice::ParseCommandLine(&app, argc, argv)) {
    return *code;
  }
  if (!sluice::SetLogLevel(flags.log_level)) {
    std::cerr << "sluice-worker: --log-level \"" << flags.log_level
              << "\" is none of debug, info, warning, error\n";
    return kExitUsage;
  }
  std::string config = app.config_to_str(false, false);
  for (char& c : config) c = c == '\n' ? ' ' : c;
  sluice::LogInfo(
      absl::StrCat("sluice-worker ", sluice::BuildVersion(), " ", config));
  const absl::Status status = sluice::RunGuarded([&]() -> absl::Status {
    SLUICE_RETURN_IF_ERROR(sluice::CheckStart(kThreads, kAddressBytes));
    return Serve(flags, signals);
  });
  if (!status.ok()) {
    std::cerr << "sluice-worker: "
              << sluice::EscapeLinesForTerminal(status.message()) << "\n";
    return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailure;
  }
  return 0;
}
