#include "common/flags/daemon.h"

#include <unistd.h>

#include <csignal>
#include <iostream>

#include "absl/strings/match.h"
#include "common/flags/command_line.h"
#include "common/host/logging.h"
#include "common/host/start_check.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/version.h"

namespace sluice {

int RunDaemon(const Daemon& daemon, const LogFlags& log, CLI::App* app,
              int argc, char** argv) {
  StopSignals signals({.serves = true});
  std::signal(SIGPIPE, SIG_IGN);
  app->set_version_flag("-V,--version", BuildVersion());
  AddEnvironmentTwins(app, daemon.twins);
  if (const auto code = ParseCommandLine(app, argc, argv, &log)) {
    return *code;
  }
  for (const std::string& mistake :
       UnknownVariables(*app, daemon.twins, environ)) {
    LogWarning(mistake);
  }
  std::string config = app->config_to_str(false, false);
  for (char& c : config) c = c == '\n' ? ' ' : c;
  LogInfo(app->get_name(), " ", BuildVersion(), " ", config);
  const absl::Status status = RunGuarded([&]() -> absl::Status {
    SLUICE_RETURN_IF_ERROR(CheckStart(daemon.threads, daemon.address_bytes));
    return daemon.serve(signals);
  });
  if (signals.stopped()) LogInfo("signal ", signals.signal(), ": has ended");
  if (status.ok() || (signals.stopped() && absl::IsCancelled(status))) return 0;
  if (LogsJson()) {
    LogError(status.message());
  } else {
    std::cerr << app->get_name() << ": "
              << EscapeLinesForTerminal(status.message()) << "\n";
  }
  return absl::IsInvalidArgument(status) ? kExitUsage : 1;
}

void WarnIfOpen(const std::string& host, absl::string_view what, bool encrypted,
                bool authenticated) {
  if (absl::StartsWith(host, "127.") || host == "localhost" || host == "::1" ||
      host == "[::1]") {
    return;
  }
  if (!authenticated) {
    LogWarning("listening on ", host, encrypted ? "" : " without TLS and",
               " without authentication: anyone who reaches this port can ",
               what);
  } else if (!encrypted) {
    LogWarning("listening on ", host,
               " without TLS: anyone on the way can read along, tokens too");
  }
}

}  // namespace sluice
