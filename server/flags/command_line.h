#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace sluice {

// What the programs' command lines have in common: one line for a mistake that
// says what was meant, help in groups, and a twin in the environment for each
// flag.
//
// An option's first long name is the one that it goes by. Further ones, as in
// "-o,--output,--output-file", are aliases, by which other programs know it:
// taken, but not shown in help, and without a twin.

constexpr int kExitUsage = 2;

// Where the programs listen unless told otherwise.
constexpr int kCoordinatorPort = 7070;
constexpr int kCoordinatorMetricsPort = 7071;
constexpr int kLinkPort = 7072;  // a worker's, for other workers
constexpr int kWorkerMetricsPort = 7073;

// The group of the flags that matter first, which help shows first.
constexpr char kMainGroup[] = "Main";

// Gives every flag shown that has none its twin: with the prefix "SLUICE_"
// --max-step-tokens can be set by SLUICE_MAX_STEP_TOKENS. A flag wins over its
// twin. Also of subcommands. Help says so.
void AddEnvironmentTwins(CLI::App* app, const std::string& prefix);

// Parses, and sets what the options are bound to. The exit code if the program
// is to end now: after help or the version (0), or after a mistake
// (kExitUsage), which is told in one line on stderr. Sets the log level, if
// `log_level`, which an option is bound to, is not null.
std::optional<int> ParseCommandLine(CLI::App* app, int argc,
                                    const char* const* argv,
                                    const std::string* log_level = nullptr);

// What is wrong with a command line that names a command or a flag that is not
// there: "unknown flag --max-token; did you mean --max-tokens?". "" if nothing
// of that kind is. Other mistakes are CLI11's to find.
std::string UnknownName(const CLI::App& app, int argc, const char* const* argv);

}  // namespace sluice
