// `sluice profile`: measures this machine.

#include <iostream>
#include <memory>
#include <string>

#include "common/codec/profile_json.h"
#include "common/flags/checks.h"
#include "common/flags/shared_flags.h"
#include "common/status_macros.h"
#include "common/threads/clock.h"
#include "server/cli/commands.h"
#include "server/cli/jobs/output_file.h"
#include "server/cli/jobs/progress.h"
#include "server/cli/plan/profile_table.h"
#include "server/cli/run/cluster_flags.h"
#include "server/local_profile.h"

namespace sluice {
namespace {

struct ProfileFlags {
  LocalProfileOptions profile;
  std::string output, show;
  bool json = false, cached = false, quiet = false;
};

absl::StatusOr<MachineProfile> GetProfile(const ProfileFlags& flags,
                                          StopSignals* signals) {
  if (!flags.show.empty()) return ReadProfileFile(flags.show);
  ProgressDisplay display(Clock::Real(), flags.quiet);
  LocalProfileOptions options = flags.profile;
  options.fresh = !flags.cached;
  options.stop = signals->flag();
  const StopSignals::Watch watch(signals);
  return LocalProfile(options, ShowProfiling(&display));
}

absl::Status Run(const ProfileFlags& flags, StopSignals* signals) {
  // The output is checked before measuring, which takes long.
  std::unique_ptr<OutputFile> output;
  if (!flags.output.empty() && flags.output != "-") {
    SLUICE_ASSIGN_OR_RETURN(output, OutputFile::Plan(flags.output, "--output"));
    if (!flags.show.empty()) {
      SLUICE_RETURN_IF_ERROR(
          CheckDistinct({{flags.show, "--show"}}, {output.get()}));
    }
  }
  SLUICE_ASSIGN_OR_RETURN(const MachineProfile profile,
                          GetProfile(flags, signals));
  if (output != nullptr) {
    SLUICE_RETURN_IF_ERROR(output->Write(ProfileToJson(profile)));
    SLUICE_RETURN_IF_ERROR(output->Commit());
  }
  if (flags.json || flags.output == "-") {
    std::cout << ProfileToJson(profile);
  } else {
    std::cout << ProfileTable(profile);
  }
  std::cout.flush();
  if (!std::cout) return absl::UnknownError("cannot write to stdout");
  return absl::OkStatus();
}

}  // namespace

void AddProfileCommand(CLI::App* app, StopSignals* signals, Command* chosen) {
  CLI::App* cmd = app->add_subcommand(
      "profile",
      "Measure this machine, for the planner: disk, memory, products, "
      "attention, links. Takes about 20 s, in which nothing else should run");
  auto flags = std::make_shared<ProfileFlags>();
  MachineFlags& machine = flags->profile.machine;
  cmd->group(kPlanCommands);
  cmd->add_option("--disk-dir", machine.disk_dir,
                  "measure the disk there; default: no disk tier");
  cmd->add_option("--disk-space", machine.disk_space,
                  "what may be used of it, as 100GiB; default: 90 % of what "
                  "is free or holds weights already");
  AddDevice(cmd, &machine.device);
  AddTensorParallel(cmd, &machine.tensor_parallel);
  cmd->add_option("--device-memory", machine.device_memory,
                  "what may be used of the device's own memory, as 20GiB; "
                  "default: what a GPU has free, but for about 1 GiB");
  cmd->add_option("--host-memory", machine.host_memory,
                  "what may be used of memory, as 8GiB; default: 75 % of what "
                  "is free");
  cmd->add_option("--threads", machine.threads,
                  "threads that compute; 0: all cores")
      ->check(AtLeast(0));
  cmd->add_option("-o,--output", flags->output,
                  "write the profile here, as JSON to read and to edit; - is "
                  "stdout")
      ->type_name("FILE")
      ->envname("SLUICE_PROFILE_OUTPUT");
  cmd->add_flag("--json", flags->json, "JSON on stdout instead of a table");
  auto* cached = cmd->add_flag(
      "--cached", flags->cached,
      "take what was measured before, if nothing has changed since");
  cmd->add_option("--seconds", flags->profile.seconds,
                  "how long to measure, about; less is less exact, and is not "
                  "kept for later; default: 20")
      ->check(CLI::PositiveNumber)
      ->excludes(cached);
  cmd->add_option("--show", flags->show,
                  "measure nothing: check this file, and show it")
      ->excludes(cached);
  cmd->add_flag("-q,--quiet", flags->quiet, "no progress");
  cmd->footer(
      "Examples:\n"
      "  sluice profile --disk-dir /fast/disk\n"
      "  sluice profile --disk-dir /fast/disk -o node-1.json\n"
      "  sluice profile --show node-1.json     # after editing it\n"
      "  sluice profile --json --threads 8 --host-memory 32GiB");
  cmd->callback([=] { *chosen = [=] { return Run(*flags, signals); }; });
}

}  // namespace sluice
