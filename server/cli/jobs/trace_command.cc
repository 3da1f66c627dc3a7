// `sluice trace`: one timeline of a whole cluster while it computed a job.

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/flags/checks.h"
#include "common/host/stop_signals.h"
#include "common/status_macros.h"
#include "common/threads/deadline.h"
#include "server/cli/commands.h"
#include "server/cli/jobs/output_file.h"
#include "server/cli/jobs/timeline.h"

namespace sluice {
namespace {

// Workers tell what they did with their heartbeats, each second.
constexpr absl::Duration kTracePoll = absl::Milliseconds(200);
constexpr absl::Duration kSettleTime = absl::Seconds(10);

struct TraceFlags {
  std::string id, output = "-";
};

// The trace, of an ended job as soon as all workers have told their part.
absl::StatusOr<v1::Trace> SettledTrace(JobClient& client, const std::string& id,
                                       const StopSignals& signals) {
  const Deadline deadline = Deadline::In(kSettleTime);
  for (;;) {
    absl::StatusOr<v1::Trace> trace = client.GetTrace(id);
    if (!trace.ok() || trace->settled() || deadline.passed()) return trace;
    signals.WaitFor(kTracePoll);
  }
}

absl::Status Trace(const TraceFlags& flags,
                   const CoordinatorPlace& coordinator) {
  SLUICE_ASSIGN_OR_RETURN(
      const auto file,
      OutputFile::Plan(flags.output, "--output", coordinator.signals, true));
  SLUICE_ASSIGN_OR_RETURN(const auto client, ConnectTo(coordinator));
  SLUICE_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(flags.id));
  SLUICE_ASSIGN_OR_RETURN(
      const v1::Trace trace,
      SettledTrace(*client, flags.id, *coordinator.signals));
  SLUICE_RETURN_IF_ERROR(WriteTimeline(
      job, trace, [&](absl::string_view data) { return file->Write(data); }));
  SLUICE_RETURN_IF_ERROR(file->Commit());
  if (trace.truncated()) {
    std::cerr << "the beginning is missing: the coordinator keeps what the "
                 "cluster did lately, since it last started\n";
  }
  if (!trace.settled()) {
    std::cerr << "the end may be missing: a worker has not told yet what it "
                 "did; try again\n";
  }
  if (trace.dropped() > 0) {
    std::cerr << "workers had no room for " << trace.dropped()
              << " spans since they attached\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddTraceCommand(CLI::App* app, const CoordinatorPlace* coordinator,
                     Command* chosen) {
  CLI::App* cmd = app->add_subcommand(
      "trace",
      "Write one timeline of coordinator and workers while a job existed, for "
      "Perfetto or chrome://tracing");
  auto flags = std::make_shared<TraceFlags>();
  cmd->add_option("job", flags->id, "the job's id")
      ->required()
      ->check(Utf8Text());
  cmd->add_option("-o,--output", flags->output,
                  "the trace's file, as JSON; -: stdout. Named .gz or .zst, it "
                  "is compressed")
      ->capture_default_str();
  cmd->group(kOperatorCommands);
  cmd->footer(
      "It shows each step on the coordinator, and on each worker when it "
      "computed, waited and sent. The coordinator keeps the last 131072 spans, "
      "so trace a job while it runs, or soon after. Jobs that run at the same "
      "time share steps.\n"
      "Examples:\n"
      "  sluice trace job_1 -o job_1.json\n"
      "  sluice trace job_1 -o job_1.json.gz");
  cmd->callback([=] { *chosen = [=] { return Trace(*flags, *coordinator); }; });
}

}  // namespace sluice
