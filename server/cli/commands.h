#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace sluice {

// The groups of commands in help.
constexpr char kAloneCommands[] = "On this machine alone";
constexpr char kClusterCommands[] = "With a coordinator";
constexpr char kPlanCommands[] = "Before anything runs";

// Each function adds a subcommand to `app`. If the user chose it, `*chosen` is
// set to the function that carries it out.
using Command = std::function<absl::Status()>;

// The commands that talk to a coordinator about jobs and workers.
void AddJobCommands(CLI::App* app, const std::string* coordinator,
                    Command* chosen);
void AddRunCommand(CLI::App* app, Command* chosen);
void AddPlanCommand(CLI::App* app, const std::string* coordinator,
                    Command* chosen);
void AddSimulateCommand(CLI::App* app, const std::string* coordinator,
                        Command* chosen);
void AddScoreCommand(CLI::App* app, Command* chosen);
void AddProfileCommand(CLI::App* app, Command* chosen);

}  // namespace sluice
