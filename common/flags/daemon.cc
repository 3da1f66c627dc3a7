#include "common/flags/daemon.h"

#include <unistd.h>

#include <csignal>
#include <iostream>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/flags/command_line.h"
#include "common/flags/config_file.h"
#include "common/host/listen_probe.h"
#include "common/host/logging.h"
#include "common/host/start_check.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/version.h"

namespace sluice {
namespace {

// Reads the file again: sets the log's level if it came from there, and says
// which other keys have changed in vain.
void Reload(const CLI::App& app, const std::string& path,
            const ConfigFile& before) {
  const absl::StatusOr<ConfigFile> read = ConfigFile::Read(app, path);
  if (!read.ok()) {
    LogWarning("SIGHUP: nothing is changed: ", read.status().message());
    return;
  }
  LogInfo("SIGHUP: ", path, " is read again");
  std::set<std::string> keys;
  for (const auto& [key, value] : before.values()) keys.insert(key);
  for (const auto& [key, value] : read->values()) keys.insert(key);
  const auto text = [](const ConfigFile& file, const std::string& key) {
    const auto found = file.values().find(key);
    return found == file.values().end() ? "" : found->second.text;
  };
  for (const std::string& key : keys) {
    if (key == "log-level" || text(before, key) == text(*read, key)) continue;
    LogWarning(path, ": ", key, " changed: it takes effect at the next start");
  }
  const std::string level = text(*read, "log-level");
  // What a flag or the environment says stays.
  const bool from_here = !before.Where("--log-level").empty() ||
                         app.get_option("--log-level")->count() == 0;
  if (!level.empty() && from_here && !SetLogLevel(level)) {
    LogWarning(path, ": log-level \"", EscapeForTerminal(level),
               "\" is none of debug, info, warning, error");
  }
}

}  // namespace

int RunDaemon(const Daemon& daemon, const LogFlags& log, CLI::App* app,
              int argc, char** argv) {
  std::string path;
  bool check = false;
  ConfigFile config;
  StopSignals signals({.serves = true});
  std::signal(SIGPIPE, SIG_IGN);
  app->set_version_flag("-V,--version", BuildVersion());
  app->add_option(absl::StrCat("--", kConfigFlag), path,
                  "TOML file of the flags that neither the command line nor "
                  "the environment has: min-workers = 2. SIGHUP has its "
                  "log-level read again")
      ->type_name("FILE");
  CLI::Option* const check_option =
      app->add_flag("--check-config", check,
                    "check flags, environment and --config, and end");
  AddEnvironmentTwins(app, daemon.twins);
  check_option->envname("");
  if (const std::string named =
          EarlyValue(*app, argc, argv, absl::StrCat("--", kConfigFlag));
      !named.empty()) {
    absl::StatusOr<ConfigFile> read = ConfigFile::Read(*app, named);
    if (!read.ok()) {
      std::cerr << app->get_name() << ": --config "
                << EscapeLinesForTerminal(read.status().message()) << "\n";
      return kExitUsage;
    }
    config = *std::move(read);
    config.SetTwins();
  }
  if (const auto code = ParseCommandLine(app, argc, argv, &log, &config)) {
    return *code;
  }
  for (const std::string& mistake :
       UnknownVariables(*app, daemon.twins, environ)) {
    LogWarning(mistake);
  }
  std::string options = app->config_to_str(false, false);
  for (char& c : options) c = c == '\n' ? ' ' : c;
  LogInfo(app->get_name(), " ", BuildVersion(), " ", options);
  const absl::Status status = RunGuarded([&]() -> absl::Status {
    SLUICE_RETURN_IF_ERROR(CheckStart(daemon.threads, daemon.address_bytes));
    if (check) return daemon.check();
    if (!path.empty()) {
      signals.OnHangup([&] { Reload(*app, path, config); });
    }
    return daemon.serve(signals);
  });
  if (check && status.ok()) {
    std::cout << app->get_name() << ": the configuration is good\n";
  }
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

absl::Status CheckListen(const ListenSecurity& security) {
  if (security.encrypted && security.authenticated) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const bool local, IsLoopbackListener(security.host));
  if (local) return absl::OkStatus();
  const std::string open =
      security.authenticated
          ? "without TLS, so that anyone on the way can read along, tokens too"
          : absl::StrCat(security.encrypted ? "without authentication"
                                            : "without TLS and authentication",
                         ", so that anyone who reaches it can ", security.what);
  if (security.insecure) {
    LogWarning("listening on ", security.host, " ", open,
               ": --insecure-listen allows it");
    return absl::OkStatus();
  }
  return InvalidArgument("--host ", security.host, " would be open to others ",
                         open, ": give ", security.instead,
                         ", or --insecure-listen on a network where all are "
                         "trusted (docs/security.md)");
}

}  // namespace sluice
