#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/flags/shared_flags.h"

namespace sluice {

class ConfigFile;

// The common parts of the programs' command lines: one-line errors that suggest
// the intended name, help in groups, and an environment variable (twin) for
// each flag.
//
// An option's first long name is its main one. Further ones, as in
// "-o,--output,--output-file", are other programs' names for it: accepted, but
// not shown in help, and without a twin.

constexpr int kExitUsage = 2;

// The default ports of the programs.
constexpr int kCoordinatorPort = 7070;
constexpr int kCoordinatorMetricsPort = 7071;
constexpr int kLinkPort = 7072;  // a worker's, for other workers
constexpr int kWorkerMetricsPort = 7073;
// Of the first worker of `sluice-worker --all`, whose other ports are from 7072
// on, as many as there are workers.
constexpr int kAllMetricsPort = 7173;

// The flag that names a daemon's ConfigFile, "--config".
constexpr char kConfigFlag[] = "config";

// The group of the flags that matter first, which help shows first.
constexpr char kMainGroup[] = "Main";

// Gives every visible flag, also of subcommands, its twin if it has none: with
// the prefix "SLUICE_", SLUICE_MAX_STEP_TOKENS sets --max-step-tokens. A flag
// overrides its twin. Help shows twins.
void AddEnvironmentTwins(CLI::App* app, const std::string& prefix);

// Returns a line for each variable that looks like a flag's twin and is none:
// one that begins with the program's own prefix, or is written almost like one
// of its variables. Others may be for other programs. `environment` is as
// environ(7). REQUIRES: AddEnvironmentTwins(app, prefix).
std::vector<std::string> UnknownVariables(const CLI::App& app,
                                          const std::string& prefix,
                                          const char* const* environment);

// Returns the value that the command line gives to a flag ("--config"), else
// that of its variable, else "". To know it before the rest is parsed.
std::string EarlyValue(const CLI::App& app, int argc, const char* const* argv,
                       const std::string& flag);

// Parses, and sets the options' variables. Returns the exit code if the program
// must end now: after help or the version (0), or after an error (kExitUsage),
// which is printed in one line on stderr. Then sets up the log as `log` says,
// whose members are options' variables, unless it is null. `config`, unless it
// is null, has set its variables: an error of a value of it names its line.
std::optional<int> ParseCommandLine(CLI::App* app, int argc,
                                    const char* const* argv,
                                    const LogFlags* log = nullptr,
                                    const ConfigFile* config = nullptr);

// The error of a command line that names an unknown command or flag: "unknown
// flag --max-token; did you mean --max-tokens?". "" if there is none. CLI11
// finds other errors.
std::string UnknownName(const CLI::App& app, int argc, const char* const* argv);

}  // namespace sluice
