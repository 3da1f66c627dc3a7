// `sluice drain`: has plans do without a worker, so that it can be stopped.

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/flags/checks.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "server/cli/commands.h"

namespace sluice {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(200);

struct DrainFlags {
  std::string worker;
  bool undo = false;
  bool no_wait = false;
};

// Waits until the worker is in no plan any more.
absl::Status AwaitDrained(const std::string& name, JobClient& client) {
  bool told = false;
  for (;;) {
    SLUICE_ASSIGN_OR_RETURN(const v1::ClusterState state,
                            client.GetClusterState());
    const auto worker =
        std::find_if(state.workers().begin(), state.workers().end(),
                     [&](const v1::WorkerInfo& w) { return w.name() == name; });
    const std::string shown = EscapeForTerminal(name);
    if (worker == state.workers().end()) {
      std::cout << "worker '" << shown << "' is gone\n";
      return absl::OkStatus();
    }
    if (worker->state() == v1::WORKER_STATE_DRAINED) {
      std::cout << "worker '" << shown
                << "' is drained: stop it, or take it back with `sluice drain "
                << shown << " --undo`\n";
      if (state.state() != "running" && state.state() != "idle") {
        std::cout << "the cluster now: " << EscapeForTerminal(state.state())
                  << "\n";
      }
      return absl::OkStatus();
    }
    if (!std::exchange(told, true)) {
      std::cerr << "worker '" << shown
                << "' works until another plan begins ...\n";
    }
    absl::SleepFor(kPoll);
  }
}

absl::Status Drain(const DrainFlags& flags,
                   const CoordinatorPlace& coordinator) {
  SLUICE_ASSIGN_OR_RETURN(const auto client, ConnectTo(coordinator));
  SLUICE_RETURN_IF_ERROR(client->DrainWorker(flags.worker, flags.undo));
  if (flags.undo) {
    std::cout << "plans may use worker '" << EscapeForTerminal(flags.worker)
              << "' again\n";
    return absl::OkStatus();
  }
  return flags.no_wait ? absl::OkStatus() : AwaitDrained(flags.worker, *client);
}

}  // namespace

void AddDrainCommand(CLI::App* app, const CoordinatorPlace* coordinator,
                     Command* chosen) {
  CLI::App* cmd = app->add_subcommand(
      "drain",
      "Have plans do without a worker, and wait until they do; jobs go on with "
      "the others");
  auto flags = std::make_shared<DrainFlags>();
  cmd->add_option("worker", flags->worker, "its name, as in `sluice cluster`")
      ->required()
      ->check(Utf8Text());
  cmd->add_flag("--undo", flags->undo, "let plans use it again");
  cmd->add_flag("--no-wait", flags->no_wait,
                "return before the plan that it works in has ended");
  cmd->group(kOperatorCommands);
  cmd->footer(
      "It lasts until it is undone, or until the worker's process ends. "
      "Stopping a worker by SIGTERM drains it, too.\n"
      "Examples:\n"
      "  sluice drain node7\n"
      "  sluice drain node7 --undo");
  cmd->callback([=] { *chosen = [=] { return Drain(*flags, *coordinator); }; });
}

}  // namespace sluice
