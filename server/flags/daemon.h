#pragma once

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

// What a program that serves until a signal stops it is besides its flags.
struct Daemon {
  std::string twins;  // prefix of its flags' twins in the environment
  int threads = 0;    // that it starts with (see CheckStart)
  size_t address_bytes = 0;
  // Until one of the signals comes, SIGINT or SIGTERM: they are blocked, to be
  // taken with sigtimedwait.
  std::function<absl::Status(const sigset_t& signals)> serve;
};

// The whole of such a program's main(), to be called before any thread starts:
// parses the command line, sets the log level, which is bound to an option of
// `app`, logs what was not left at its default, and serves. Returns the exit
// code: kExitUsage for what the user said wrong, else 1 for an error.
int RunDaemon(const Daemon& daemon, const std::string& log_level, CLI::App* app,
              int argc, char** argv);

// Warns that anyone who reaches the port can do `what`, unless only this
// machine does.
void WarnIfOpen(const std::string& host, absl::string_view what);

}  // namespace sluice
