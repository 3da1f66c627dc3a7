#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/flags/shared_flags.h"
#include "common/host/stop_signals.h"

namespace sluice {

// A program that serves until a signal stops it, without its flags.
struct Daemon {
  std::string twins;  // prefix of its flags' twins in the environment
  int threads = 0;    // at start (see CheckStart)
  size_t address_bytes = 0;
  // Checks what the flags say, beyond each by itself, as serve() does at first.
  std::function<absl::Status()> check;
  // Serves until a signal asks to stop: OK. That may be at any moment.
  std::function<absl::Status(StopSignals& signals)> serve;
};

// The whole of such a program's main(), to be called before any thread starts:
// adds --config and --check-config, parses the command line above the
// environment above the ConfigFile, sets up the log, whose flags are options of
// `app`, logs options that differ from their defaults, and serves, or only
// checks. With a ConfigFile, SIGHUP does not stop the program, but has it read
// the log's level there again. Returns the exit code: 0 if a signal ended it,
// kExitUsage for an error of the user's, 1 for any other error.
int RunDaemon(const Daemon& daemon, const LogFlags& log, CLI::App* app,
              int argc, char** argv);

// How a program that listens on `host` keeps strangers out.
struct ListenSecurity {
  std::string host;
  absl::string_view what;      // what strangers could do otherwise
  absl::string_view instead;   // the flags that would keep them out
  bool encrypted = false;      // by TLS
  bool authenticated = false;  // by tokens, or certificates of clients
  bool insecure = false;       // --insecure-listen
};

// kInvalidArgument if others can reach the host and it is not both encrypted
// and authenticated, unless --insecure-listen says that this is meant: then it
// is a warning. kUnavailable if the host has no address.
absl::Status CheckListen(const ListenSecurity& security);

}  // namespace sluice
