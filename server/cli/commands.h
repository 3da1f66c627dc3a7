#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/host/stop_signals.h"
#include "proto/security_flags.h"
#include "server/job_client.h"

namespace sluice {

// The groups of commands in help.
constexpr char kAloneCommands[] = "On this machine alone";
constexpr char kClusterCommands[] = "With a coordinator";
constexpr char kOperatorCommands[] = "For those who operate a cluster";
constexpr char kPlanCommands[] = "Before anything runs";
constexpr char kHelpCommands[] = "About this program";

// Where the coordinator is, and how it is spoken to.
struct CoordinatorPlace {
  std::string address = "127.0.0.1:7070";
  SecurityFlags security;
  StopSignals* signals = nullptr;  // end the calls to it
};

// A client of the coordinator there. kInvalidArgument says which flag is wrong.
absl::StatusOr<std::unique_ptr<JobClient>> ConnectTo(
    const CoordinatorPlace& coordinator);

// Each function adds a subcommand to `app`. If the user chose it, `*chosen` is
// set to the function that carries it out.
using Command = std::function<absl::Status()>;

// The commands that talk to a coordinator about jobs and workers.
void AddJobCommands(CLI::App* app, const CoordinatorPlace* coordinator,
                    Command* chosen);
void AddTraceCommand(CLI::App* app, const CoordinatorPlace* coordinator,
                     Command* chosen);
void AddDrainCommand(CLI::App* app, const CoordinatorPlace* coordinator,
                     Command* chosen);
void AddTokenCommand(CLI::App* app, Command* chosen);
void AddRunCommand(CLI::App* app, StopSignals* signals, Command* chosen);
void AddPlanCommand(CLI::App* app, const CoordinatorPlace* coordinator,
                    Command* chosen);
void AddSimulateCommand(CLI::App* app, const CoordinatorPlace* coordinator,
                        Command* chosen);
void AddScoreCommand(CLI::App* app, StopSignals* signals, Command* chosen);
void AddProfileCommand(CLI::App* app, StopSignals* signals, Command* chosen);
void AddModelsCommand(CLI::App* app, Command* chosen);
// `help [COMMAND]` and `version`, which say what the flags do.
void AddHelpCommands(CLI::App* app, Command* chosen);

}  // namespace sluice
