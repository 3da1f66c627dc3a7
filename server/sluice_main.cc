// The `sluice` command.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "common/flags/command_line.h"
#include "common/flags/shared_flags.h"
#include "common/host/logging.h"
#include "common/host/start_check.h"
#include "common/host/stop_signals.h"
#include "common/text/text.h"
#include "common/version.h"
#include "server/cli/commands.h"

namespace {

// Exit codes for scripts: 0 done, 1 failed, 2 wrong usage or input, 3 all
// requests failed (with --strict, some), 4 the coordinator can't be reached,
// 128 + the signal that ended the command.
int ExitCode(const absl::Status& status, int signal) {
  if (!status.ok() && signal != 0) return 128 + signal;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:  // a file or job that the user named
      return 2;
    case absl::StatusCode::kAborted:
      return 3;
    case absl::StatusCode::kUnavailable:
      return 4;
    default:
      return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  sluice::StopSignals signals({});
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a write error
  CLI::App app{"Sluice: offline inference in bulk", "sluice"};
  app.require_subcommand(1);
  app.set_version_flag("-V,--version", sluice::BuildVersion());
  sluice::CoordinatorPlace coordinator;
  coordinator.signals = &signals;
  sluice::LogFlags log{.level = "warning"};
  sluice::AddCoordinatorAddress(&app, &coordinator.address);
  coordinator.security.AddClient(&app);
  log.AddTo(&app);
  app.fallthrough();
  app.footer(
      "One machine, no servers:\n"
      "  sluice run --model ./llama -i prompts.jsonl -o answers.jsonl\n"
      "A cluster (see sluice-coordinator --help and sluice-worker --help):\n"
      "  sluice submit -i prompts.jsonl --wait -o answers.jsonl\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 all requests "
      "failed\n(with --strict, some), 4 no coordinator, 130 stopped by "
      "Ctrl-C,\n143 by SIGTERM");
  sluice::Command chosen;
  sluice::AddJobCommands(&app, &coordinator, &chosen);
  sluice::AddRunCommand(&app, &signals, &chosen);
  sluice::AddScoreCommand(&app, &signals, &chosen);
  sluice::AddPlanCommand(&app, &coordinator, &chosen);
  sluice::AddSimulateCommand(&app, &coordinator, &chosen);
  sluice::AddProfileCommand(&app, &signals, &chosen);
  sluice::AddModelsCommand(&app, &chosen);
  sluice::AddTraceCommand(&app, &coordinator, &chosen);
  sluice::AddDrainCommand(&app, &coordinator, &chosen);
  sluice::AddTokenCommand(&app, &chosen);
  sluice::AddHelpCommands(&app, &chosen);
  sluice::AddEnvironmentTwins(&app, "SLUICE_");
  if (const auto code = sluice::ParseCommandLine(&app, argc, argv, &log)) {
    return *code;
  }
  for (const std::string& mistake :
       sluice::UnknownVariables(app, "SLUICE_", environ)) {
    sluice::LogWarning(mistake);
  }
  const absl::Status status = sluice::RunGuarded(chosen);
  if (!status.ok() && sluice::LogsJson()) {
    sluice::LogError(status.message());
  } else if (!status.ok()) {
    std::cerr << "sluice: " << sluice::EscapeLinesForTerminal(status.message())
              << "\n";
  }
  return ExitCode(status, signals.signal());
}
