// The `sluice-coordinator` program.

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/flags/checks.h"
#include "common/flags/command_line.h"
#include "common/flags/daemon.h"
#include "common/flags/shared_flags.h"
#include "common/host/host_port.h"
#include "common/host/logging.h"
#include "common/host/start_check.h"
#include "common/host/stop_signals.h"
#include "common/host/user_cache.h"
#include "common/http/http_tls.h"
#include "common/metrics/metrics_server.h"
#include "common/status_macros.h"
#include "coordinator/coordinator.h"
#include "coordinator/planning/policy_choices.h"
#include "proto/security_flags.h"
#include "server/access/audit_log.h"
#include "server/access/http_guard.h"
#include "server/access/token_guard.h"
#include "server/console/console.h"
#include "server/coordinator_flags.h"
#include "server/coordinator_server.h"
#include "server/http/coordinator_handle.h"
#include "server/http/discovery.h"

namespace sluice {
namespace {

// The interval at which /readyz learns whether jobs can run.
constexpr absl::Duration kTick = absl::Milliseconds(200);
// The threads at start on a machine of few cores.
constexpr int kThreads = 37;
constexpr size_t kAddressBytes = size_t{256} << 20;

struct Flags {
  CoordinatorFlags coordinator;
  std::string host = "127.0.0.1", state_dir, input_root;
  LogFlags log;
  std::string tokens, audit_log;
  SecurityFlags security;
  int port = kCoordinatorPort, metrics_port = kCoordinatorMetricsPort;
  double heartbeat_timeout = 10, stall_timeout = 60, upload_idle_timeout = 60;
};

void AddFlags(CLI::App& app, Flags& f) {
  CoordinatorFlags& c = f.coordinator;
  Coordinator::Options& options = c.options;
  c.plan = "on";
  c.replicas = "auto";
  AddModel(&app, &c.model, " (weights not needed)")
      ->required()
      ->group(kMainGroup)
      ->envname("SLUICE_MODEL");
  app.add_option("--state-dir", f.state_dir, "where jobs and results are kept")
      ->required()
      ->group(kMainGroup)
      ->type_name("DIR");
  app.add_option("--served-model-name", options.served_model_name,
                 "what requests call the model; default: its directory's name")
      ->check(Utf8Text());
  app.add_option("--host", f.host, "address to listen on")
      ->capture_default_str()
      ->group(kMainGroup);
  AddPort(&app, &f.port)->group(kMainGroup);
  AddMetricsPort(&app, &f.metrics_port);
  app.add_option("--min-workers", options.min_workers,
                 "plan only when so many workers are registered")
      ->check(AtLeast(1))
      ->capture_default_str()
      ->group(kMainGroup);
  app.add_option("--input-root", f.input_root,
                 "jobs may name input files under this directory");
  AddDType(&app, &c.dtype);
  c.AddMaxModelLen(&app);
  app.add_option("--default-max-tokens", options.default_max_tokens,
                 "tokens to generate when nobody says")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c.AddGenerationConfig(&app);
  c.AddScoreTokens(&app);
  app.add_option("--gbs", options.gbs, "sequences in a micro-batch");
  c.AddLinkDType(&app);
  c.AddNumMicrobatches(&app);
  app.add_option("--blocks", options.num_blocks,
                 "blocks in flight; default: one a stage, and one more where "
                 "weights stay in memory, or planned");
  c.AddMaxStepTokens(&app);
  c.AddPolicy(&app);
  app.add_option("--plan", c.plan,
                 "on: plan each job from the workers' profiles, if all have "
                 "one; what other flags say stays")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  app.add_option("--split", c.split,
                 "with --plan on: even, as many layers for each worker, or "
                 "balanced, by what each can do")
      ->check(CLI::IsMember({"even", "balanced"}))
      ->capture_default_str();
  c.AddReplicas(&app);
  app.add_option("--load-format", c.load_format,
                 "auto, or dummy: workers make random weights")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  c.AddNoRefill(&app);
  c.AddReserveKv(&app);
  c.AddSharePrefixes(&app);
  c.AddOrder(&app);
  c.AddPromptDetails(&app);
  c.AddKeepInterval(&app);
  app.add_option("--heartbeat-timeout", f.heartbeat_timeout,
                 "seconds after which a silent worker counts as dead")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--stall-timeout", f.stall_timeout,
                 "seconds after which a worker that lives, but gets nothing "
                 "done although it has work, is left out of plans; ten times "
                 "what a piece of its work was seen to take, if that is longer")
      ->check(CLI::Range(2.0, 1e6))
      ->capture_default_str();
  app.add_option("--upload-idle-timeout", f.upload_idle_timeout,
                 "seconds after which an upload from which nothing comes ends, "
                 "and frees its request_id")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  f.security.AddCoordinator(&app);
  app.add_option(
         "--tokens", f.tokens,
         "file of the tokens that users must show, which `sluice token` "
         "makes; default: everybody may do everything")
      ->group("Security")
      ->type_name("FILE");
  app.add_option("--audit-log", f.audit_log,
                 "append who did what, and who was refused, to this file")
      ->group("Security")
      ->type_name("FILE");
  f.log.AddTo(&app);
  app.footer(
      "Examples:\n"
      "  sluice-coordinator --model ./llama --state-dir /var/lib/sluice\n"
      "  sluice-coordinator --model ./llama --state-dir ./state "
      "--min-workers 2 --host 0.0.0.0 \\\n"
      "    --tls-cert tls/head.lan.pem --tls-key tls/head.lan.key "
      "--tls-ca tls/ca.pem \\\n"
      "    --tokens tokens.json --cluster-token-file cluster.secret");
}

// Checks that --replicas does not say another number than the plan of --policy.
absl::Status CheckReplicas(const CoordinatorFlags& flags) {
  if (flags.replicas == "auto") return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Plan> plans,
                          PlansNamedBy(flags.options.policy));
  if (plans.empty() || absl::StrCat(plans.size()) == flags.replicas) {
    return absl::OkStatus();
  }
  return InvalidArgument("--replicas ", flags.replicas,
                         ": the plan of --policy has ", plans.size(),
                         plans.size() == 1 ? " pipeline" : " pipelines",
                         "; leave --replicas out");
}

// Who may call what.
struct Access {
  std::unique_ptr<AuditLog> audit;
  std::unique_ptr<TokenGuard> guard;
};

absl::StatusOr<Access> OpenAccess(const Flags& f) {
  Access access;
  if (!f.audit_log.empty()) {
    SLUICE_ASSIGN_OR_RETURN(access.audit, AuditLog::Open(f.audit_log));
  }
  TokenGuard::Options options = {.tokens_file = f.tokens,
                                 .audit = access.audit.get(),
                                 .clock = Clock::Real()};
  if (!f.security.cluster_token_file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(options.cluster_token,
                            ReadTokenFile(f.security.cluster_token_file));
  }
  SLUICE_ASSIGN_OR_RETURN(access.guard, TokenGuard::Create(options));
  return access;
}

// Reads the flags of the coordinator itself.
absl::StatusOr<Coordinator::Options> ReadOptions(const Flags& f) {
  SLUICE_ASSIGN_OR_RETURN(Coordinator::Options options,
                          f.coordinator.Read(ModelFiles::kWeightsIfAny));
  options.state_dir = f.state_dir;
  options.input_root = f.input_root;
  options.timeouts.heartbeat_timeout = absl::Seconds(f.heartbeat_timeout);
  options.timeouts.stall_timeout = absl::Seconds(f.stall_timeout);
  const std::string cache = UserCacheDir();
  options.hash_cache =
      absl::StrCat(cache.empty() ? f.state_dir : cache, "/content-hashes");
  return options;
}

absl::Status CheckHost(const Flags& f) {
  return CheckListen({.host = f.host,
                      .what = "submit jobs and read results",
                      .instead = "--tls-cert, --tls-key and --tokens",
                      .encrypted = !f.security.tls.certificate.empty(),
                      .authenticated = !f.tokens.empty() ||
                                       !f.security.tls.authorities.empty(),
                      .insecure = f.security.insecure_listen});
}

absl::Status Check(const Flags& f) {
  SLUICE_RETURN_IF_ERROR(CheckReplicas(f.coordinator));
  SLUICE_RETURN_IF_ERROR(f.security.Server().status());
  SLUICE_RETURN_IF_ERROR(CheckHost(f));
  SLUICE_RETURN_IF_ERROR(OpenAccess(f).status());
  SLUICE_ASSIGN_OR_RETURN(const Coordinator::Options options, ReadOptions(f));
  return options.Validate();
}

absl::Status Serve(const Flags& f, const StopSignals& signals) {
  SLUICE_RETURN_IF_ERROR(CheckReplicas(f.coordinator));
  SLUICE_ASSIGN_OR_RETURN(const TlsFiles tls, f.security.Server());
  SLUICE_RETURN_IF_ERROR(CheckHost(f));
  SLUICE_ASSIGN_OR_RETURN(const Access access, OpenAccess(f));
  HttpServer::Options http;
  http.host = f.host;
  http.port = f.metrics_port;
  CoordinatorHandle handle;
  Console console(&handle, access.guard.get(), access.guard->has_tokens());
  http.routes = console.Routes();
  http.routes.push_back(DiscoveryRoute(&handle));
  http.authorize = GuardHttp(access.guard.get());
  if (!tls.empty()) {
    SLUICE_ASSIGN_OR_RETURN(http.tls, HttpTls::Create(tls));
  }
  SLUICE_ASSIGN_OR_RETURN(auto metrics, MetricsServer::Start(std::move(http)));
  SetBuildInfo(metrics->registry(), "none");
  SLUICE_ASSIGN_OR_RETURN(Coordinator::Options options, ReadOptions(f));
  options.guard = access.guard.get();
  options.quota_of = [guard = access.guard.get()](const std::string& tenant) {
    return guard->QuotaOf(tenant);
  };
  options.metrics = metrics->registry();
  SLUICE_RETURN_IF_ERROR(signals.Check());
  SLUICE_ASSIGN_OR_RETURN(auto coordinator, Coordinator::Create(options));
  const OpenCoordinator open(&handle, coordinator.get());
  JobServiceImpl::Options jobs;
  jobs.guard = access.guard.get();
  jobs.uploads.idle_timeout = absl::Seconds(f.upload_idle_timeout);
  SLUICE_ASSIGN_OR_RETURN(
      auto server,
      CoordinatorServer::Start(coordinator.get(), JoinHostPort(f.host, f.port),
                               jobs, tls));
  // Scripts that start a coordinator on port 0 read this line.
  const std::string http_address =
      absl::StrCat(tls.empty() ? "http" : "https", "://", metrics->address());
  std::cout << "listening on " << JoinHostPort(f.host, server->port())
            << ", console on " << http_address << "/console/, metrics on "
            << http_address << "/metrics" << std::endl;
  while (!signals.WaitFor(kTick)) {
    metrics->SetReady(
        coordinator->ready()
            ? absl::OkStatus()
            : absl::UnavailableError(coordinator->cluster_state().state()));
  }
  metrics->SetReady(absl::UnavailableError("shutting down"));
  LogInfo("signal ", signals.signal(), ": shutting down");
  server->Shutdown();
  return absl::OkStatus();
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::RaiseFileLimit();
  CLI::App app{"Sluice's coordinator: queues jobs and drives the workers",
               "sluice-coordinator"};
  sluice::Flags flags;
  sluice::AddFlags(app, flags);
  const sluice::Daemon daemon = {
      .twins = "SLUICE_COORDINATOR_",
      .threads = sluice::kThreads,
      .address_bytes = sluice::kAddressBytes,
      .check = [&] { return Check(flags); },
      .serve =
          [&](sluice::StopSignals& signals) { return Serve(flags, signals); }};
  return sluice::RunDaemon(daemon, flags.log, &app, argc, argv);
}
