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

// Each adds one subcommand to `app`. When the user picked it, `*chosen` is set
// to the function that carries it out.
using Command = std::function<absl::Status()>;

void AddSubmitCommand(CLI::App* app, const std::string* coordinator,
                      Command* chosen);
void AddStatusCommand(CLI::App* app, const std::string* coordinator,
                      Command* chosen);
void AddWatchCommand(CLI::App* app, const std::string* coordinator,
                     Command* chosen);
void AddResultsCommand(CLI::App* app, const std::string* coordinator,
                       Command* chosen);
void AddCancelCommand(CLI::App* app, const std::string* coordinator,
                      Command* chosen);
void AddDeleteCommand(CLI::App* app, const std::string* coordinator,
                      Command* chosen);
void AddListCommand(CLI::App* app, const std::string* coordinator,
                    Command* chosen);
void AddClusterCommand(CLI::App* app, const std::string* coordinator,
                       Command* chosen);
void AddRunCommand(CLI::App* app, Command* chosen);
void AddPlanCommand(CLI::App* app, const std::string* coordinator,
                    Command* chosen);
void AddSimulateCommand(CLI::App* app, const std::string* coordinator,
                        Command* chosen);
void AddScoreCommand(CLI::App* app, Command* chosen);
void AddProfileCommand(CLI::App* app, Command* chosen);

}  // namespace sluice
