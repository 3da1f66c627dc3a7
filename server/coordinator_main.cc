// The `sluice-coordinator` program.

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/host/logging.h"
#include "common/host/start_check.h"
#include "common/host/user_cache.h"
#include "common/metrics/metrics_server.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/version.h"
#include "coordinator/coordinator.h"
#include "scheduler/plan/plan.h"
#include "server/coordinator_server.h"
#include "server/flags/checks.h"
#include "server/flags/command_line.h"
#include "server/flags/foreign_flags.h"

namespace {

// How often /readyz learns whether jobs can run.
constexpr timespec kTick = {0, 200'000'000};
// What runs on a machine of few cores.
constexpr int kThreads = 34;
constexpr size_t kAddressBytes = size_t{256} << 20;

struct Flags {
  std::string model, served_model_name, host = "127.0.0.1", state_dir,
                                        input_root, dtype = "auto";
  std::string log_level = "info", load_format = "auto", plan = "on",
              split = "even", generation_config = "auto";
  std::vector<std::string> policy;
  int port = sluice::kCoordinatorPort,
      metrics_port = sluice::kCoordinatorMetricsPort;
  int32_t min_workers = 1, blocks = 0, gbs = 0, num_microbatches = 0;
  int32_t max_step_tokens = 0, max_model_len = 0,
          default_max_tokens = sluice::kDefaultMaxTokens;
  double heartbeat_timeout = 10, stall_timeout = 60, upload_idle_timeout = 60;
  bool no_refill = false, reserve_kv = false;
};

void AddFlags(CLI::App& app, Flags& f) {
  app.add_option("--model", f.model, "model directory (weights not needed)")
      ->required()
      ->group(sluice::kMainGroup)
      ->type_name("DIR")
      ->envname("SLUICE_MODEL");
  app.add_option("--state-dir", f.state_dir, "where jobs and results are kept")
      ->required()
      ->group(sluice::kMainGroup)
      ->type_name("DIR");
  app.add_option("--served-model-name", f.served_model_name,
                 "what requests call the model; default: its directory's name")
      ->check(sluice::Utf8Text());
  app.add_option("--host", f.host, "address to listen on")
      ->capture_default_str()
      ->group(sluice::kMainGroup);
  app.add_option("--port", f.port, "gRPC port; 0: any free one")
      ->check(sluice::From(0, 65535))
      ->capture_default_str()
      ->group(sluice::kMainGroup);
  app.add_option("--metrics-port", f.metrics_port,
                 "Prometheus port; 0: any free one")
      ->check(sluice::From(0, 65535))
      ->capture_default_str();
  app.add_option("--min-workers", f.min_workers,
                 "plan only when so many workers are registered")
      ->check(sluice::AtLeast(1))
      ->capture_default_str()
      ->group(sluice::kMainGroup);
  app.add_option("--input-root", f.input_root,
                 "jobs may name input files under this directory");
  app.add_option("--dtype", f.dtype,
                 "auto (the model's), float32, bfloat16 or, on GPUs, float16")
      ->capture_default_str();
  app.add_option("--max-model-len", f.max_model_len,
                 "positions of prompt and answer; default: the model's");
  app.add_option("--default-max-tokens", f.default_max_tokens,
                 "tokens to generate when nobody says")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--generation-config", f.generation_config,
                 "auto: requests that do not say get the values of the model's "
                 "generation_config.json; none: as if it had none")
      ->check(CLI::IsMember({"auto", "none"}))
      ->capture_default_str();
  app.add_option("--gbs", f.gbs, "sequences in a micro-batch");
  app.add_option("--num-microbatches", f.num_microbatches,
                 "micro-batches in a block; default: 1, or planned");
  app.add_option("--blocks", f.blocks,
                 "blocks in flight; default: one a stage");
  app.add_option("--max-step-tokens", f.max_step_tokens,
                 "new tokens of a micro-batch in one step; default: 2048, or "
                 "planned");
  app.add_option(
      "--policy", f.policy,
      "key=value pairs, or @FILE of them, which win over the flags "
      "above; may be repeated. Keys: gbs num-microbatches "
      "max-step-tokens threads w c h compress-weights compress-kv "
      "attention-site sparsity schedule overlap packing (see README.md)");
  sluice::AddFormatAliases(&app, &f.policy);
  app.add_option("--plan", f.plan,
                 "on: plan each job from the workers' profiles, if all have "
                 "one; what other flags say stays")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  app.add_option("--split", f.split,
                 "with --plan on: even, as many layers for each worker, or "
                 "balanced, by what each can do")
      ->check(CLI::IsMember({"even", "balanced"}))
      ->capture_default_str();
  app.add_option("--load-format", f.load_format,
                 "auto, or dummy: workers make random weights")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  app.add_flag("--no-refill", f.no_refill,
               "start new sequences only when a whole block has ended");
  app.add_flag("--reserve-kv", f.reserve_kv,
               "reserve the KV cache that a sequence may come to need from its "
               "start on, instead of sharing it by need");
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
  app.add_option("--log-level", f.log_level, "debug, info, warning or error")
      ->capture_default_str()
      ->envname("SLUICE_LOG_LEVEL");
  app.set_version_flag("-V,--version", sluice::BuildVersion());
  app.footer(
      "Examples:\n"
      "  sluice-coordinator --model ./llama --state-dir /var/lib/sluice\n"
      "  sluice-coordinator --model ./llama --state-dir ./state "
      "--min-workers 2 --host 0.0.0.0");
}

bool IsLoopback(const std::string& host) {
  return host.rfind("127.", 0) == 0 || host == "localhost" || host == "::1" ||
         host == "[::1]";
}

absl::Status Serve(const Flags& f, const sigset_t& signals) {
  SLUICE_ASSIGN_OR_RETURN(auto metrics,
                          sluice::MetricsServer::Start(f.host, f.metrics_port));
  sluice::SetBuildInfo(metrics->registry(), "none");
  sluice::Coordinator::Options options;
  options.model_dir = f.model;
  options.served_model_name = f.served_model_name;
  options.state_dir = f.state_dir;
  options.input_root = f.input_root;
  SLUICE_ASSIGN_OR_RETURN(options.dtype, sluice::ParseDTypeChoice(f.dtype));
  options.min_workers = f.min_workers;
  options.num_blocks = f.blocks;
  options.gbs = f.gbs;
  options.num_microbatches = f.num_microbatches;
  options.max_step_tokens = f.max_step_tokens;
  options.policy = f.policy;
  options.plan_jobs = f.plan == "on";
  options.split =
      f.split == "balanced" ? sluice::Split::kBalanced : sluice::Split::kEven;
  options.dummy_weights = f.load_format == "dummy";
  options.max_model_len = f.max_model_len;
  options.generation_config = f.generation_config == "auto";
  options.default_max_tokens = f.default_max_tokens;
  options.refill = !f.no_refill;
  options.kv_by_need = !f.reserve_kv;
  options.timeouts.heartbeat_timeout = absl::Seconds(f.heartbeat_timeout);
  options.timeouts.stall_timeout = absl::Seconds(f.stall_timeout);
  options.metrics = metrics->registry();
  const std::string cache = sluice::UserCacheDir();
  options.hash_cache =
      absl::StrCat(cache.empty() ? f.state_dir : cache, "/content-hashes");
  SLUICE_ASSIGN_OR_RETURN(auto coordinator,
                          sluice::Coordinator::Create(options));
  sluice::JobServiceImpl::Options jobs;
  jobs.uploads.idle_timeout = absl::Seconds(f.upload_idle_timeout);
  SLUICE_ASSIGN_OR_RETURN(
      auto server,
      sluice::CoordinatorServer::Start(
          coordinator.get(), absl::StrCat(f.host, ":", f.port), jobs));
  if (!IsLoopback(f.host)) {
    sluice::LogWarning(absl::StrCat(
        "listening on ", f.host,
        " without TLS or authentication: anyone who reaches this port can "
        "submit jobs and read results"));
  }
  // Scripts that start a coordinator on port 0 read this line.
  std::cout << "listening on " << f.host << ":" << server->port()
            << ", metrics on http://" << metrics->address() << "/metrics"
            << std::endl;
  int signal;
  while ((signal = sigtimedwait(&signals, nullptr, &kTick)) < 0) {
    metrics->SetReady(
        coordinator->ready()
            ? absl::OkStatus()
            : absl::UnavailableError(coordinator->cluster_state().state()));
  }
  metrics->SetReady(absl::UnavailableError("shutting down"));
  sluice::LogInfo(absl::StrCat("signal ", signal, ": shutting down"));
  server->Shutdown();
  return absl::OkStatus();
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
  sluice::RaiseFileLimit();

  CLI::App app{"Sluice's coordinator: queues jobs and drives the workers",
               "sluice-coordinator"};
  Flags flags;
  AddFlags(app, flags);
  sluice::AddEnvironmentTwins(&app, "SLUICE_COORDINATOR_");
  if (const auto code = sluice::ParseCommandLine(&app, argc, argv)) {
    return *code;
  }
  if (!sluice::SetLogLevel(flags.log_level)) {
    std::cerr << "sluice-coordinator: --log-level \"" << flags.log_level
              << "\" is none of debug, info, warning, error\n";
    return 2;
  }
  std::string config = app.config_to_str(false, false);
  for (char& c : config) c = c == '\n' ? ' ' : c;
  sluice::LogInfo(
      absl::StrCat("sluice-coordinator ", sluice::BuildVersion(), " ", config));
  const absl::Status status = sluice::RunGuarded([&]() -> absl::Status {
    SLUICE_RETURN_IF_ERROR(sluice::CheckStart(kThreads, kAddressBytes));
    return Serve(flags, signals);
  });
  if (!status.ok()) {
    std::cerr << "sluice-coordinator: "
              << sluice::EscapeLinesForTerminal(status.message()) << "\n";
    return absl::IsInvalidArgument(status) ? 2 : 1;
  }
  return 0;
}
