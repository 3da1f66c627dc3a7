// The `sluice-worker` program.

#include <CLI/CLI.hpp>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/flags/checks.h"
#include "common/flags/command_line.h"
#include "common/flags/daemon.h"
#include "common/flags/shared_flags.h"
#include "common/host/host_port.h"
#include "common/host/logging.h"
#include "common/host/stop_signals.h"
#include "common/host/user_cache.h"
#include "common/host/write_file.h"
#include "common/http/http_tls.h"
#include "common/machine_flags.h"
#include "common/machine_profile.h"
#include "common/metrics/metrics_server.h"
#include "common/status_macros.h"
#include "common/text/bytes_text.h"
#include "common/threads/deadline.h"
#include "common/threads/thread.h"
#include "proto/call_guard.h"
#include "proto/security_flags.h"
#include "runtime/memory/host_memory.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/model_path.h"
#include "runtime/profile/machine_facts.h"
#include "runtime/profile/profile_cache.h"
#include "worker/all/command_line.h"
#include "worker/all/machine_parts.h"
#include "worker/all/supervisor.h"
#include "worker/link/link_server.h"
#include "worker/machine_share.h"
#include "worker/name_claim.h"
#include "worker/probe/worker_profile.h"
#include "worker/worker.h"

namespace sluice {
namespace {

// Threads beside the compute threads.
constexpr int kThreads = 32;
constexpr size_t kAddressBytes = size_t{128} << 20;
// The interval at which grpc.health.v1 learns whether the worker is ready.
constexpr absl::Duration kTick = absl::Milliseconds(200);
constexpr absl::Duration kLeaveTick = absl::Milliseconds(20);
// What a worker has to end once plans do without it.
constexpr absl::Duration kTimeToEnd = absl::Seconds(2);

struct Flags {
  MachineFlags machine;
  LinkSetup links;
  LogFlags log;
  std::string coordinator = "127.0.0.1:7070", model, host = "127.0.0.1",
              advertise, name, load_format = "auto", trace, profile,
              link = "auto", cache_dir, cache_space;
  int port = kLinkPort, metrics_port = kWorkerMetricsPort;
  double leave_timeout = 25;
  bool no_profile = false;
  // Of --all; and how its processes are told what part they are: "numa0/2".
  bool all = false, dry_run = false;
  std::string per = "auto", machine_part;
  SecurityFlags security;
  bool allow_clear_nccl = false;
  const CLI::Option* device_option = nullptr;
  const CLI::Option* model_option = nullptr;
  const CLI::Option* metrics_port_option = nullptr;
};

// Adds the flags of a machine with several workers.
void AddAll(CLI::App& app, Flags& f) {
  auto* all = app.add_flag(
      "--all", f.all,
      "a worker for each part of this machine, each in a process of its own, "
      "started again if it crashes; memory and disk space are divided, ports "
      "follow each other, from 7072 on, and for metrics from 7173 on");
  all->group(kMainGroup);
  app.add_option(
         "--per", f.per,
         "with --all: a worker for each gpu, numa (node) or l3 (cache), "
         "or so many; auto: the first of these that there is more than "
         "one of")
      ->needs(all)
      ->type_name("PART")
      ->capture_default_str();
  app.add_flag("--dry-run", f.dry_run, "with --all: only say what would start")
      ->needs(all);
  app.add_option("--machine-part", f.machine_part)->group("");
}

// Adds how this worker is linked to others.
void AddLinks(CLI::App& app, Flags& f) {
  app.add_option("--link", f.link,
                 "what carries activations from worker to worker: grpc; tcp, "
                 "by connections of their own to the same port, or nothing; "
                 "nccl, from GPU to GPU, or nothing; or auto: nccl between "
                 "workers that compute on GPUs and have libnccl, else tcp")
      ->check(CLI::IsMember({"auto", "grpc", "nccl", "tcp"}))
      ->capture_default_str();
  app.add_flag("--allow-clear-nccl", f.allow_clear_nccl,
               "with TLS: let NCCL carry activations all the same, which its "
               "own sockets send in the clear");
  f.security.AddWorker(&app);
  app.add_option("--nccl-library", f.links.nccl_library,
                 "where NCCL is, if not where the system looks")
      ->capture_default_str();
  app.add_option("--cuda-library", f.links.cuda_library,
                 "where the CUDA driver is, if not where the system looks")
      ->capture_default_str();
}

void AddFlags(CLI::App& app, Flags& f) {
  MachineFlags& machine = f.machine;
  AddCoordinatorAddress(&app, &f.coordinator)
      ->check(Utf8Text())
      ->group(kMainGroup);
  f.model_option =
      AddModel(&app, &f.model, ", with weights",
               "; default: what is needed of the cluster's model is fetched "
               "from the coordinator or other workers")
          ->group(kMainGroup)
          ->envname("SLUICE_MODEL");
  app.add_option("--host", f.host,
                 "address to listen on, for other workers and metrics")
      ->capture_default_str()
      ->group(kMainGroup);
  AddPort(&app, &f.port);
  app.add_option("--advertise", f.advertise,
                 "host or host:port under which other workers reach this one; "
                 "default: --host, or the host's name if that is a wildcard")
      ->check(Utf8Text())
      ->group(kMainGroup);
  app.add_option("--name", f.name,
                 "unique among live workers; default: the host's name, with "
                 "-2, -3 for further workers of a host; one that is started "
                 "again under its name takes its former place")
      ->check(Utf8Text());
  f.device_option = AddDevice(&app, &machine.device);
  AddTensorParallel(&app, &machine.tensor_parallel);
  app.add_option("--device-memory", machine.device_memory,
                 "most memory of each device, as 20GiB, if it has its own; "
                 "default: what a GPU has free, but for about 1 GiB");
  AddLinks(app, f);
  app.add_option("--host-memory", machine.host_memory,
                 "most memory for weights, KV cache and activations, as 8GiB; "
                 "default: 75 % of what is available")
      ->group(kMainGroup)
      ->type_name("SIZE");
  AddDiskDir(&app, &machine.disk_dir);
  app.add_option("--disk-space", machine.disk_space,
                 "hard budget on disk, as 100GiB; default: 90 % of what is "
                 "free or holds weights already");
  app.add_option("--cache-dir", f.cache_dir,
                 "without --model: where fetched parts of models are kept; "
                 "default: models in ~/.cache/sluice; workers may share it")
      ->type_name("DIR");
  app.add_option("--cache-space", f.cache_space,
                 "most disk space of --cache-dir, as 100GiB; models unused "
                 "for longest go first; default: 90 % of what is free or "
                 "held by it already")
      ->type_name("SIZE");
  AddLoadFormat(&app, &f.load_format);
  auto* profile =
      app.add_option("--profile", f.profile,
                     "profile of this machine, as `sluice profile -o FILE` "
                     "writes it; default: measured once for each number of "
                     "threads and ranks, in 20 to 30 s, and kept in --disk-dir "
                     "or ~/.cache/sluice");
  app.add_flag("--no-profile", f.no_profile,
               "do without a profile: the coordinator cannot plan for this "
               "worker")
      ->excludes(profile);
  app.add_option("--trace", f.trace,
                 "write a timeline (Chrome trace, for Perfetto) here at the "
                 "end");
  app.add_option("--threads", machine.threads,
                 "threads that compute; 0: one for each core")
      ->check(AtLeast(0))
      ->capture_default_str();
  app.add_option("--leave-timeout", f.leave_timeout,
                 "seconds that a worker which SIGTERM or Ctrl-C stops works on "
                 "until a plan of the others begins; a second signal ends it "
                 "at once")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  f.metrics_port_option = AddMetricsPort(&app, &f.metrics_port);
  f.log.AddTo(&app);
  AddAll(app, f);
  app.footer(
      "Examples:\n"
      "  sluice-worker --model ./llama\n"
      "  sluice-worker --coordinator head.lan:7070 --host 0.0.0.0 "
      "--advertise node1.lan \\\n"
      "    --tls-cert tls/node1.lan.pem --tls-key tls/node1.lan.key "
      "--tls-ca tls/ca.pem \\\n"
      "    --cluster-token-file cluster.secret\n"
      "  sluice-worker --model ./llama --coordinator 10.0.0.1:7070 "
      "--host 10.0.0.2 \\\n"
      "    --insecure-listen --host-memory 48GiB --all");
}

bool IsWildcard(const std::string& host) {
  return host == "0.0.0.0" || host == "::" || host == "[::]";
}

std::string AdvertisedHost(const Flags& f) {
  if (!f.advertise.empty()) return f.advertise;
  return IsWildcard(f.host) ? HostName() : f.host;
}

// Whether it is "host:port", not "host" (IPv6 in brackets, if with a port).
bool HasPort(const std::string& host) {
  const size_t colon = host.rfind(':');
  return colon != std::string::npos &&
         (host.find(':') == colon || (colon > 0 && host[colon - 1] == ']'));
}

std::string WithPort(const std::string& host, int port) {
  return HasPort(host) ? host : JoinHostPort(host, port);
}

// Does SetPart() as --machine-part says, if it does.
absl::Status MakePart(const Flags& f, MachineProfile* profile) {
  if (f.machine_part.empty()) return absl::OkStatus();
  const size_t slash = f.machine_part.rfind('/');
  int parts = 0;
  if (slash == std::string::npos ||
      !absl::SimpleAtoi(f.machine_part.substr(slash + 1), &parts) ||
      parts < 1) {
    return InvalidArgument("--machine-part ", f.machine_part,
                           ": it must be a name, a slash and a number");
  }
  SetPart(f.machine_part.substr(0, slash), parts, profile);
  return absl::OkStatus();
}

// Measures this machine on a thread of its own, if there is no profile yet, and
// tells the worker.
class Measuring {
 public:
  // All must outlive it.
  Measuring(const Flags& flags, const MachineShare& machine, Worker* worker)
      : flags_(flags),
        machine_(machine),
        worker_(worker),
        thread_("profiling", [this] { Run(); }) {}
  ~Measuring() {
    cancelled_ = true;
    thread_.Join();
  }

 private:
  void Run() {
    absl::StatusOr<MachineProfile> profile = CachedProfile(
        ProfileCacheOf(machine_),
        [this](absl::string_view what, double share) { Tell(what, share); },
        &cancelled_);
    if (absl::IsCancelled(profile.status())) return;
    absl::Status status = profile.status();
    if (status.ok()) status = MakePart(flags_, &*profile);
    if (!status.ok()) {
      LogWarning("no profile of this machine: ", std::string(status.message()));
      worker_->SetProfile(nullptr);
      return;
    }
    if (profile->disturbed) {
      LogWarning(
          "other work ran while this machine was measured, so that plans may "
          "be off: `sluice profile` with the same flags measures it again, "
          "and so does a start in an hour or more");
    }
    worker_->SetProfile(
        std::make_shared<const MachineProfile>(*std::move(profile)));
  }

  void Tell(absl::string_view what, double share) {
    constexpr double kTell = 0.2;  // of the work
    const bool awaits = what == kAwaitsMeasurement;
    worker_->SetMeasured(share, awaits);
    if (awaits) {
      LogInfo("waiting while another process measures this machine");
      return;
    }
    if (told_ >= 0 && share < told_ + kTell) return;
    LogInfo(
        "measuring this machine (once for each number of threads and "
        "ranks; --no-profile to do without): ",
        static_cast<int>(100 * share), " %, ", what);
    told_ = share;
  }

  const Flags& flags_;
  const MachineShare& machine_;
  Worker* const worker_;
  std::atomic<bool> cancelled_{false};
  double told_ = -1;
  Thread thread_;
};

// Reads the flags of the model, or of the cache for one.
absl::Status ReadModel(const Flags& f, Worker::Options* options) {
  if (!f.model.empty()) {
    if (!f.cache_dir.empty() || !f.cache_space.empty()) {
      return absl::InvalidArgumentError(
          "--cache-dir and --cache-space are for workers without --model");
    }
    SLUICE_ASSIGN_OR_RETURN(
        options->model_dir,
        FindModel(f.model, options->dummy_weights ? ModelFiles::kConfig
                                                  : ModelFiles::kWeights));
    if (options->model_dir != f.model) {
      LogInfo("--model ", f.model, ": ", options->model_dir.string());
    }
    return ModelDir::Open(options->model_dir).status();
  }
  if (f.model_option->count() > 0) {
    return absl::InvalidArgumentError(
        "--model is empty; name a directory, or leave the flag out for a "
        "worker that fetches what it needs");
  }
  const std::string cache = UserCacheDir();
  if (f.cache_dir.empty() && cache.empty()) {
    return absl::InvalidArgumentError(
        "without --model, this worker needs a --cache-dir for the parts of a "
        "model that it fetches: the user's cache directory is not known");
  }
  options->cache.dir = f.cache_dir;
  if (f.cache_dir.empty()) {
    options->cache.dir = absl::StrCat(cache, "/models");
    std::error_code shows_later;
    std::filesystem::create_directories(cache, shows_later);
  }
  if (f.cache_space.empty()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(
      options->cache.max_bytes,
      Annotate(ParseByteSize(f.cache_space), "--cache-space"));
  return absl::OkStatus();
}

// With TLS, there are only links that are encrypted, but for NCCL's if they are
// allowed.
absl::Status KeepPrivate(const Flags& f, LinkSetup* links) {
  links->has_port = false;
  if (links->choice == LinkChoice::kTcp) {
    return InvalidArgument(
        "--link tcp is in the clear; with TLS, use --link grpc");
  }
  if (f.allow_clear_nccl) {
    LogWarning("links by NCCL are in the clear, as --allow-clear-nccl says");
    return absl::OkStatus();
  }
  if (links->choice == LinkChoice::kNccl) {
    return InvalidArgument(
        "--link nccl: NCCL's sockets are in the clear; with TLS, use --link "
        "grpc, or --allow-clear-nccl on a network of their own");
  }
  links->choice = LinkChoice::kGrpc;
  return absl::OkStatus();
}

absl::Status CheckHost(const Flags& f) {
  const TlsFiles& tls = f.security.tls;
  return CheckListen(
      {.host = f.host,
       .what = "feed this worker activations and read weights",
       .instead = "--tls-cert, --tls-key, --tls-ca and --cluster-token-file",
       .encrypted = !tls.certificate.empty(),
       .authenticated =
           !f.security.cluster_token_file.empty() || !tls.authorities.empty(),
       .insecure = f.security.insecure_listen});
}

// Reads all flags but the metrics' and the trace's. Makes the disk directory.
absl::StatusOr<Worker::Options> ReadOptions(const Flags& f,
                                            const std::string& name) {
  Worker::Options options;
  options.name = name;
  options.coordinator_address =
      WithDefaultPort(f.coordinator, kCoordinatorPort);
  SLUICE_ASSIGN_OR_RETURN(const ChannelSecurity security, f.security.Channel());
  options.channels = TcpChannels(security);
  if (!security.token.empty()) {
    options.guard = MakeClusterGuard(security.token);
  }
  // Errors of these flags show before the time that measuring takes.
  SLUICE_ASSIGN_OR_RETURN(options.machine, ParseMachine(f.machine));
  options.links = f.links;
  SLUICE_ASSIGN_OR_RETURN(options.links.choice, ParseLinkChoice(f.link));
  options.links.has_port = true;
  if (security.tls) SLUICE_RETURN_IF_ERROR(KeepPrivate(f, &options.links));
  options.dummy_weights = f.load_format == "dummy";
  if (const std::string cache = ProfileCacheDir(f.machine.disk_dir);
      !cache.empty()) {
    options.hash_cache = cache + "/content-hashes";
  }
  SLUICE_RETURN_IF_ERROR(ReadModel(f, &options));
  SLUICE_RETURN_IF_ERROR(options.Validate());
  SLUICE_RETURN_IF_ERROR(
      OpenPayloads(options.links, options.machine.device).status());
  SLUICE_RETURN_IF_ERROR(PrepareDisk(&options.machine));
  if (f.profile.empty()) return options;
  SLUICE_ASSIGN_OR_RETURN(
      MachineProfile read,
      Annotate(ReadWorkerProfile(f.profile, options.machine), "--profile"));
  SLUICE_RETURN_IF_ERROR(MakePart(f, &read));
  options.profile = std::make_shared<const MachineProfile>(std::move(read));
  return options;
}

absl::StatusOr<std::unique_ptr<Tracer>> MakeTracer(const std::string& file,
                                                   const std::string& name) {
  if (file.empty()) return nullptr;
  auto tracer = std::make_unique<Tracer>(Tracer::Options{.process_name = name});
  // A trace file that can't be written shows before the work.
  SLUICE_RETURN_IF_ERROR(Annotate(tracer->WriteJson(file), "--trace"));
  return tracer;
}

// Says what to do when this worker's ports may be those of another one.
absl::Status HintAtPorts(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(),
                   "; if another worker runs here, --port 0 --metrics-port 0 "
                   "take free ports, and --all starts a worker for each part "
                   "of the machine"));
}

absl::StatusOr<std::unique_ptr<MetricsServer>> StartMetrics(const Flags& f) {
  HttpServer::Options http;
  http.host = f.host;
  http.port = f.metrics_port;
  SLUICE_ASSIGN_OR_RETURN(const TlsFiles tls, f.security.Server());
  if (!tls.empty()) {
    SLUICE_ASSIGN_OR_RETURN(http.tls, HttpTls::Create(tls));
  }
  auto server = MetricsServer::Start(std::move(http));
  if (!server.ok()) return HintAtPorts(server.status());
  return server;
}

absl::StatusOr<std::unique_ptr<LinkServer>> StartLinks(const Flags& f,
                                                       Worker& worker) {
  SLUICE_ASSIGN_OR_RETURN(const TlsFiles tls, f.security.Server());
  auto server =
      LinkServer::Start(f.host, f.port, worker.link_service(),
                        worker.weights_service(), worker.tcp_links(), tls);
  if (!server.ok()) return HintAtPorts(server.status());
  return server;
}

// Waits until a signal comes, or the worker can't go on, and returns why;
// publishes meanwhile whether it is ready.
absl::Status Await(Worker& worker, LinkServer& server, MetricsServer& metrics,
                   const StopSignals& signals) {
  bool serving = false;
  absl::Status health;
  while (!signals.WaitFor(kTick)) {
    health = worker.health();
    if (!health.ok()) break;
    if (worker.ready() == serving) continue;
    serving = !serving;
    server.SetServing(serving);
    metrics.SetReady(serving ? absl::OkStatus()
                             : absl::UnavailableError("no stage is loaded"));
  }
  LogInfo(health.ok() ? absl::StrCat("signal ", signals.signal(),
                                     ": leaving; another one ends this at once")
                      : "shutting down, for another process to take over");
  server.SetServing(false);
  metrics.SetReady(absl::UnavailableError("shutting down"));
  return health;
}

// Works on until plans do without the worker, or `time` has passed.
void HandOver(Worker& worker, absl::Duration time) {
  const Deadline deadline = Deadline::In(time);
  worker.BeginLeaving();
  while (!worker.left() && worker.health().ok()) {
    if (deadline.passed()) {
      LogWarning("the coordinator has not done without this worker within ",
                 absl::FormatDuration(time), " (--leave-timeout); it ends");
      return;
    }
    absl::SleepFor(kLeaveTick);
  }
}

absl::Status Serve(const Flags& f, StopSignals* signals) {
  SLUICE_RETURN_IF_ERROR(CheckHost(f));
  std::optional<NameClaim> claim;
  if (f.name.empty()) claim.emplace(HostName());
  const std::string name = claim ? claim->name() : f.name;
  SetLogWorker(name);
  SLUICE_ASSIGN_OR_RETURN(Worker::Options options, ReadOptions(f, name));
  const MachineShare machine = options.machine;
  const bool measure = options.profile == nullptr && !f.no_profile;
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Tracer> tracer,
                          MakeTracer(f.trace, name));
  options.tracer = tracer.get();
  options.measuring = measure;
  SLUICE_ASSIGN_OR_RETURN(auto metrics, StartMetrics(f));
  SetBuildInfo(metrics->registry(), DeviceName(machine.device));
  options.metrics = metrics->registry();
  options.metrics_address = metrics->address();
  if (IsWildcard(f.host)) {  // others cannot connect to a wildcard
    const size_t colon = metrics->address().rfind(':');
    options.metrics_address =
        absl::StrCat(HostName(), metrics->address().substr(colon));
  }
  SLUICE_RETURN_IF_ERROR(signals->Check());
  SLUICE_ASSIGN_OR_RETURN(auto worker, Worker::Create(std::move(options)));
  SLUICE_ASSIGN_OR_RETURN(auto server, StartLinks(f, *worker));
  const std::string link_address = WithPort(AdvertisedHost(f), server->port());
  LogInfo(LogWorker(name), " link=", link_address,
          " memory=", machine.host_memory_bytes >> 20, " MiB",
          machine.device.has_memory()
              ? absl::StrCat(" device=\"", DescribeDevice(machine.device),
                             "\" device_memory=",
                             machine.device_memory_bytes >> 20, " MiB")
              : "");
  metrics->SetReady(absl::UnavailableError("no stage is loaded"));
  // Scripts that start a worker on port 0 read this line.
  std::cout << "listening on " << JoinHostPort(f.host, server->port())
            << ", metrics on "
            << (f.security.tls.certificate.empty() ? "http" : "https") << "://"
            << metrics->address() << "/metrics" << std::endl;
  const absl::Duration leave_time = absl::Seconds(f.leave_timeout);
  signals->SetTime(leave_time + kTimeToEnd);
  worker->Announce(link_address);
  std::optional<Measuring> measuring;
  if (measure) measuring.emplace(f, machine, worker.get());
  absl::Status status = Await(*worker, *server, *metrics, *signals);
  if (status.ok()) HandOver(*worker, leave_time);
  signals->SetTime(kTimeToEnd);
  worker->Leave();
  // Before the step in flight is waited for: it may take longer than there is.
  if (tracer != nullptr) {
    status.Update(Annotate(tracer->WriteJson(f.trace), "--trace"));
  }
  measuring.reset();
  worker->Shutdown();
  server->Shutdown();
  return status;
}

// Divides the machine among workers as the flags say. Makes the disk directory.
absl::StatusOr<std::vector<MachinePart>> PartsOf(const Flags& f) {
  const MachineFlags& machine = f.machine;
  if (HasPort(f.advertise)) {
    return InvalidArgument("--advertise ", f.advertise,
                           ": with --all it must be a host without a port, as "
                           "each worker has its own");
  }
  if (machine.device.find_first_of(":,") != std::string::npos) {
    return InvalidArgument("--device ", machine.device,
                           " names single devices; with --all say cuda, for "
                           "all GPUs, or cpu, or leave it out");
  }
  SLUICE_ASSIGN_OR_RETURN(const DeviceChoice device,
                          ParseDevice(machine.device));
  const bool gpus = device.backend == BackendKind::kCuda || f.per == "gpu" ||
                    (f.per == "auto" && f.device_option->count() == 0);
  PartsOptions options = {.per = f.per,
                          .name = f.name.empty() ? HostName() : f.name,
                          .device = machine.device,
                          .threads = machine.threads,
                          .tensor_parallel = machine.tensor_parallel,
                          .port = f.port,
                          .metrics_port = f.metrics_port_option->count() > 0
                                              ? f.metrics_port
                                              : kAllMetricsPort};
  SLUICE_ASSIGN_OR_RETURN(options.host_memory_bytes,
                          ParseHostMemory(machine.host_memory));
  if (machine.disk_dir.empty() && !machine.disk_space.empty()) {
    return absl::InvalidArgumentError("--disk-space needs a --disk-dir");
  }
  if (!machine.disk_dir.empty()) {
    MachineShare share;
    share.disk_dir = machine.disk_dir;
    if (!machine.disk_space.empty()) {
      SLUICE_ASSIGN_OR_RETURN(
          share.disk_bytes,
          Annotate(ParseByteSize(machine.disk_space), "--disk-space"));
    }
    SLUICE_RETURN_IF_ERROR(PrepareDisk(&share));
    options.disk_bytes = share.disk_bytes;
  }
  return DivideMachine(ReadMachineLayout(gpus), options);
}

// Runs a worker for each part of the machine.
absl::Status ServeAll(const Flags& f, const std::vector<std::string>& arguments,
                      StopSignals* signals) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<MachinePart> parts, PartsOf(f));
  // What is wrong for all of them shows before they start.
  SLUICE_RETURN_IF_ERROR(CheckHost(f));
  Worker::Options common;
  SLUICE_RETURN_IF_ERROR(ReadModel(f, &common));
  if (f.dry_run) {
    std::cout << PartsTable(parts) << std::flush;
    return absl::OkStatus();
  }
  std::vector<SupervisedProcess> processes;
  for (const MachinePart& part : parts) {
    processes.push_back(
        {.name = part.name,
         .arguments = PartArguments(arguments, part, parts.size(), f.trace),
         .cpus = part.cpus});
  }
  return Supervise(
      processes,
      {.without = {"SLUICE_WORKER_ALL", "SLUICE_WORKER_PER",
                   "SLUICE_WORKER_DRY_RUN", "SLUICE_WORKER_CONFIG"},
       .usage_exit = kExitUsage,
       .time_to_end = absl::Seconds(f.leave_timeout) + kTimeToEnd +
                      absl::Milliseconds(500)},
      signals);
}

absl::Status Check(const Flags& f) {
  SLUICE_RETURN_IF_ERROR(f.security.Server().status());
  SLUICE_RETURN_IF_ERROR(CheckHost(f));
  if (!f.all) {
    return ReadOptions(f, f.name.empty() ? HostName() : f.name).status();
  }
  SLUICE_RETURN_IF_ERROR(PartsOf(f).status());
  Worker::Options common;
  return ReadModel(f, &common);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  CLI::App app{
      "Sluice's worker: computes some of a model's layers for a coordinator",
      "sluice-worker"};
  sluice::Flags flags;
  sluice::AddFlags(app, flags);
  const sluice::Daemon daemon = {
      .twins = "SLUICE_WORKER_",
      .threads = sluice::kThreads,
      .address_bytes = sluice::kAddressBytes,
      .check = [&] { return Check(flags); },
      .serve =
          [&](sluice::StopSignals& signals) {
            return flags.all
                       ? ServeAll(flags, {argv + 1, argv + argc}, &signals)
                       : Serve(flags, &signals);
          }};
  return sluice::RunDaemon(daemon, flags.log, &app, argc, argv);
}
