// The subcommands that talk to a coordinator.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/flags/checks.h"
#include "common/flags/command_line.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/text/utf8.h"
#include "common/threads/clock.h"
#include "common/threads/retry_delay.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/jobs/requests/table_rows.h"
#include "server/cli/commands.h"
#include "server/cli/jobs/cluster_report.h"
#include "server/cli/jobs/follow.h"
#include "server/cli/jobs/job_io.h"
#include "server/cli/jobs/progress.h"
#include "server/job_client.h"

namespace sluice {
namespace {

// An upload of less is not shown.
constexpr int64_t kShownBytes = 1 << 20;
// A job that has no room is not sent more often than this.
constexpr absl::Duration kLeastDelay = absl::Seconds(1);

void Print(const v1::Job& job, bool json) {
  std::cout << (json ? JobToJson(job) : JobToText(job)) << std::endl;
}

// Prints once that the coordinator is away, below the text of `display`.
Patience MakePatience(const StopSignals& signals, ProgressDisplay* display) {
  Patience::Options options;
  options.sleep = [&signals](absl::Duration time) {
    return signals.WaitFor(time);
  };
  options.on_away = [display] {
    display->Finish();
    std::cerr << "the coordinator is away; trying again" << std::endl;
  };
  return Patience(std::move(options));
}

// What a signal that ended the command means for the job, of which this is the
// last state: only the command ends.
absl::Status EndedOnly(const v1::Job& job) {
  const std::string id = EscapeForTerminal(job.id());
  return absl::CancelledError(
      IsTerminal(job.state())
          ? absl::StrCat(id, " has ended; see: sluice results ", id)
          : absl::StrCat(id, " goes on; follow it with: sluice watch ", id));
}

// Watches until the job has ended, and shows each of its states. Once the
// command is asked to stop: EndedOnly, if there was a state.
absl::StatusOr<v1::Job> Follow(
    JobClient& client, const std::string& id, const StopSignals& signals,
    Patience& patience, const std::function<void(const v1::Job&)>& show) {
  v1::Job seen;
  absl::StatusOr<v1::Job> last =
      WatchToEnd(client, id, patience, [&](const v1::Job& job) {
        seen = job;
        show(job);
      });
  if (!last.ok() && signals.stopped() && !seen.id().empty()) {
    return EndedOnly(seen);
  }
  return last;
}

absl::StatusOr<v1::Job> WatchWithProgress(JobClient& client,
                                          const std::string& id,
                                          const StopSignals& signals,
                                          Patience& patience,
                                          ProgressDisplay* display) {
  absl::StatusOr<v1::Job> last =
      Follow(client, id, signals, patience,
             [&](const v1::Job& job) { display->Update(job); });
  display->Finish();
  return last;
}

// Saves the coordinator's results to the files; existing files stay as they are
// unless all results came.
absl::Status SaveResults(JobClient& client, const std::string& id,
                         int64_t offset, bool follow, bool append,
                         Patience& patience, ResultFiles* files) {
  bool open = false;
  SLUICE_RETURN_IF_ERROR(
      StreamToEnd(client, id, offset, follow, patience,
                  [&](const v1::Result& result) -> absl::Status {
                    if (!std::exchange(open, true)) {
                      SLUICE_RETURN_IF_ERROR(files->Open(append));
                    }
                    return files->Write(result);
                  }));
  SLUICE_RETURN_IF_ERROR(files->Open(append));
  return files->Commit();
}

// Whether `input` names a file, which can be read more than once.
bool IsFile(const std::string& input) {
  std::error_code error;
  return input != "-" && std::filesystem::is_regular_file(input, error);
}

// kInvalidArgument unless the input is a file, which can be read a second time
// beside the answers.
absl::Status CheckReadAgain(const std::string& input) {
  if (IsFile(input)) return absl::OkStatus();
  return InvalidArgument(
      "--input ", input,
      " is no file, so that its rows can't be read again to stand before "
      "their answers; give a file, or --output-format jsonl");
}

// Has tables begin with the columns of the job's input.
absl::Status JoinInput(const std::string& input, const v1::Job& job,
                       const StopSignals* signals, ResultFiles* files) {
  SLUICE_ASSIGN_OR_RETURN(
      auto rows, InputRows::Open(input, DelimiterOf(job.spec().table()),
                                 job.input_hash(), signals));
  files->Join(std::move(rows));
  return absl::OkStatus();
}

// Counts the errors of an ended job that has no answers.
absl::StatusOr<ErrorCounts> CountErrors(JobClient& client,
                                        const std::string& id,
                                        Patience& patience) {
  ErrorCounts errors;
  SLUICE_RETURN_IF_ERROR(StreamToEnd(client, id, 0, false, patience,
                                     [&](const v1::Result& result) {
                                       errors.Add(result);
                                       return absl::OkStatus();
                                     }));
  return errors;
}

// OK if an ended job was not cancelled and any of its requests succeeded; else
// kAborted says what there is.
absl::Status CheckEnded(JobClient& client, const v1::Job& job,
                        Patience& patience) {
  ErrorCounts errors;
  if (job.counts().completed() == 0 && job.state() != v1::JOB_STATE_CANCELLED) {
    SLUICE_ASSIGN_OR_RETURN(errors, CountErrors(client, job.id(), patience));
  }
  return CheckAnySucceeded(job, errors);
}

// A job id and the flags that every command on one job has.
struct OneJob {
  std::string id;
  bool json = false;

  void AddTo(CLI::App* cmd) {
    cmd->add_option("job", id, "the job's id, as `sluice submit` printed it")
        ->required()
        ->check(Utf8Text());
    cmd->add_flag("--json", json, "one JSON object on stdout");
  }
};

struct SubmitFlags {
  JobFlags job;
  std::string model, request_id, output, errors, output_format = "auto";
  std::vector<std::string> metadata;
  int32_t priority = 0;
  bool server_path = false, wait = false, json = false, quiet = false;

  void AddTo(CLI::App* cmd);
  absl::StatusOr<v1::JobSpec> ToSpec() const;
};

void SubmitFlags::AddTo(CLI::App* cmd) {
  job.AddTo(cmd);
  auto* wait_flag = cmd->add_flag("-w,--wait", wait,
                                  "wait until there is room for it, and watch "
                                  "it to its end")
                        ->group(kMainGroup);
  auto* output_flag =
      cmd->add_option("-o,--output,--output-file", output,
                      "with --wait: write the results here, - is stdout")
          ->group(kMainGroup)
          ->needs(wait_flag);
  cmd->add_option("--model", model,
                  "the served model's name; by default whatever is served")
      ->check(Utf8Text())
      ->envname("SLUICE_SERVED_MODEL_NAME");
  cmd->add_option("--request-id", request_id,
                  "submitting twice with the same id makes one job")
      ->check(Utf8Text());
  cmd->add_option("--priority", priority, "higher ones run first");
  cmd->add_option("--metadata", metadata, "key=value, up to 16 times")
      ->check(Utf8Text());
  cmd->add_flag("--server-path", server_path,
                "--input names a file under the coordinator's --input-root");
  cmd->add_option("--errors", errors,
                  "with --output: write error lines here instead of there")
      ->needs(output_flag);
  ResultFiles::AddFormatTo(cmd, &output_format);
  cmd->add_flag("-q,--quiet", quiet, "no progress");
  cmd->add_flag("--json", json, "one JSON object on stdout");
}

absl::StatusOr<v1::JobSpec> SubmitFlags::ToSpec() const {
  SLUICE_ASSIGN_OR_RETURN(v1::JobSpec spec, job.ToSpec());
  spec.set_model(model);
  spec.set_request_id(request_id);
  spec.set_priority(priority);
  for (const std::string& pair : metadata) {
    const size_t eq = pair.find('=');
    if (eq == std::string::npos || eq == 0) {
      return InvalidArgument("--metadata \"", pair, "\" is not key=value");
    }
    (*spec.mutable_metadata())[pair.substr(0, eq)] = pair.substr(eq + 1);
  }
  if (!server_path) return spec;
  if (const auto at = FindInvalidUtf8(job.input)) {
    return InvalidArgument("--input \"", job.input, "\" is not UTF-8 at byte ",
                           *at + 1,
                           "; give the file on the coordinator such a name");
  }
  spec.set_input_path(job.input);
  return spec;
}

// Follows the job to its end; `files` may be null.
absl::Status Wait(JobClient& client, const std::string& id, bool json,
                  const StopSignals& signals, ProgressDisplay* display,
                  ResultFiles* files) {
  // All calls share it: from here on the coordinator of the job is waited for.
  Patience patience = MakePatience(signals, display);
  patience.Heard();
  SLUICE_ASSIGN_OR_RETURN(
      const v1::Job job,
      WatchWithProgress(client, id, signals, patience, display));
  if (files != nullptr) {
    const absl::Status saved =
        SaveResults(client, id, 0, false, false, patience, files);
    if (!saved.ok() && signals.stopped()) return EndedOnly(job);
    SLUICE_RETURN_IF_ERROR(saved);
  }
  Print(job, json);
  return CheckEnded(client, job, patience);
}

// Uploads the input; null: the coordinator reads it.
absl::StatusOr<v1::Job> Upload(JobClient& client, const v1::JobSpec& spec,
                               InputFile* input, ProgressDisplay* display) {
  const absl::StatusOr<v1::Job> job = client.CreateJob(
      spec, input ? &input->stream() : nullptr, [&](int64_t bytes) {
        // What is sent at once is not worth a word.
        if (bytes < kShownBytes) return;
        display->UpdateText(absl::StrFormat("uploading: %.1f MB", bytes / 1e6));
      });
  display->Finish();
  if (input != nullptr) SLUICE_RETURN_IF_ERROR(input->stream().status());
  return job;
}

// Uploads the input, opened already. With --wait, again and again while the
// coordinator says that it has no room yet, if the input can be read again.
absl::StatusOr<v1::Job> UploadWithPatience(JobClient& client,
                                           const SubmitFlags& flags,
                                           const v1::JobSpec& spec,
                                           std::unique_ptr<InputFile> input,
                                           StopSignals* signals,
                                           ProgressDisplay* display) {
  const bool again =
      flags.wait && (flags.server_path || IsFile(flags.job.input));
  while (true) {
    absl::StatusOr<v1::Job> job = Upload(client, spec, input.get(), display);
    const std::optional<absl::Duration> delay = RetryDelayOf(job.status());
    if (!again || !delay || signals->stopped()) return job;
    std::cerr << EscapeLinesForTerminal(job.status().message())
              << "; waiting, as --wait says" << std::endl;
    if (signals->WaitFor(std::max(*delay, kLeastDelay))) return job;
    if (input != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(input, InputFile::Open(flags.job.input, signals));
    }
  }
}

absl::Status Submit(const SubmitFlags& flags,
                    const CoordinatorPlace& coordinator) {
  SLUICE_ASSIGN_OR_RETURN(const v1::JobSpec spec, flags.ToSpec());
  std::unique_ptr<InputFile> input;
  std::vector<NamedInput> inputs;
  if (!flags.server_path) {
    SLUICE_ASSIGN_OR_RETURN(
        input, InputFile::Open(flags.job.input, coordinator.signals));
    SLUICE_RETURN_IF_ERROR(InputFile::CheckKind(flags.job.input, spec));
    inputs.push_back({flags.job.input, "--input"});
  }
  std::unique_ptr<ResultFiles> files;
  if (!flags.output.empty()) {
    SLUICE_ASSIGN_OR_RETURN(
        files, ResultFiles::Plan({.output = flags.output,
                                  .errors = flags.errors,
                                  .format = flags.output_format,
                                  .inputs = inputs,
                                  .signals = coordinator.signals}));
  }
  const bool joins = files != nullptr && files->has_table() &&
                     spec.has_table() && !flags.server_path;
  if (joins) SLUICE_RETURN_IF_ERROR(CheckReadAgain(flags.job.input));
  SLUICE_ASSIGN_OR_RETURN(const auto client, ConnectTo(coordinator));
  ProgressDisplay display(Clock::Real(), flags.json || flags.quiet);
  const absl::StatusOr<v1::Job> job = UploadWithPatience(
      *client, flags, spec, std::move(input), coordinator.signals, &display);
  if (!job.ok() && coordinator.signals->stopped()) {
    return absl::CancelledError(
        "stopped before the coordinator said that it has the job; see: sluice "
        "list");
  }
  SLUICE_RETURN_IF_ERROR(job.status());
  if (joins) {
    SLUICE_RETURN_IF_ERROR(
        JoinInput(flags.job.input, *job, coordinator.signals, files.get()));
  }
  if (!flags.quiet && !job->hint().empty()) {
    std::cerr << EscapeLinesForTerminal(job->hint()) << "\n";
  }
  if (flags.wait) {
    return Wait(*client, job->id(), flags.json, *coordinator.signals, &display,
                files.get());
  }
  Print(*job, flags.json);
  if (!flags.json && !flags.quiet) {
    std::cerr << "follow it with: sluice watch " << job->id() << "\n";
  }
  return absl::OkStatus();
}

absl::Status Status(const OneJob& flags, const CoordinatorPlace& coordinator) {
  SLUICE_ASSIGN_OR_RETURN(const auto client, ConnectTo(coordinator));
  SLUICE_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(flags.id));
  Print(job, flags.json);
  return absl::OkStatus();
}

absl::Status Watch(const OneJob& flags, const CoordinatorPlace& coordinator) {
  SLUICE_ASSIGN_OR_RETURN(const auto client, ConnectTo(coordinator));
  ProgressDisplay display(Clock::Real(), flags.json);
  const StopSignals& signals = *coordinator.signals;
  Patience patience = MakePatience(signals, &display);
  if (flags.json) {
    SLUICE_ASSIGN_OR_RETURN(
        const v1::Job job,
        Follow(*client, flags.id, signals, patience,
               [](const v1::Job& now) { Print(now, true); }));
    return CheckEnded(*client, job, patience);
  }
  SLUICE_ASSIGN_OR_RETURN(
      const v1::Job job,
      WatchWithProgress(*client, flags.id, signals, patience, &display));
  Print(job, false);
  return CheckEnded(*client, job, patience);
}

struct ResultsFlags {
  std::string id, output = "-", errors, output_format = "auto", input;
  int64_t offset = 0;
  bool follow = false, append = false;

  void AddTo(CLI::App* cmd) {
    cmd->add_option("job", id, "the job's id")->required()->check(Utf8Text());
    cmd->add_option("-o,--output", output,
                    "file, which takes its place when all results are there; "
                    "-, stdout, gets each as it comes")
        ->capture_default_str();
    cmd->add_option("--errors", errors,
                    "write error lines here instead of into --output");
    ResultFiles::AddFormatTo(cmd, &output_format);
    cmd->add_option("-i,--input", input,
                    "the table that was submitted: its columns come before "
                    "the answers in CSV and TSV")
        ->type_name("FILE");
    cmd->add_option("--offset", offset,
                    "skip the results of the first N requests")
        ->check(CLI::NonNegativeNumber);
    cmd->add_flag("-f,--follow", follow,
                  "wait for results that are not there yet; to see them as "
                  "they come, write to stdout");
    cmd->add_flag("--append", append, "append to the files");
  }
};

absl::Status JoinForResults(JobClient& client, const ResultsFlags& flags,
                            const StopSignals* signals, ResultFiles* files) {
  if (!files->has_table()) {
    return absl::InvalidArgumentError(
        "--input goes with CSV or TSV as the output: name it *.csv, or say "
        "--output-format csv");
  }
  SLUICE_RETURN_IF_ERROR(CheckReadAgain(flags.input));
  SLUICE_ASSIGN_OR_RETURN(const v1::Job job, client.GetJob(flags.id));
  if (job.spec().format() != v1::INPUT_FORMAT_CSV) {
    return InvalidArgument("--input: ", flags.id,
                           " was not made of a table, so that there are no "
                           "rows to write; leave it out");
  }
  // Another file is refused before anything is written.
  SLUICE_RETURN_IF_ERROR(JoinInput(flags.input, job, signals, files));
  SLUICE_RETURN_IF_ERROR(files->CheckRows());
  return JoinInput(flags.input, job, signals, files);
}

absl::Status Results(const ResultsFlags& flags,
                     const CoordinatorPlace& coordinator) {
  ResultFiles::Options options = {.output = flags.output,
                                  .errors = flags.errors,
                                  .format = flags.output_format,
                                  .signals = coordinator.signals};
  if (!flags.input.empty()) options.inputs = {{flags.input, "--input"}};
  SLUICE_ASSIGN_OR_RETURN(auto files, ResultFiles::Plan(options));
  ProgressDisplay display(Clock::Real(), true);
  Patience patience = MakePatience(*coordinator.signals, &display);
  SLUICE_ASSIGN_OR_RETURN(const auto client, ConnectTo(coordinator));
  if (!flags.input.empty()) {
    SLUICE_RETURN_IF_ERROR(
        JoinForResults(*client, flags, coordinator.signals, files.get()));
  }
  SLUICE_RETURN_IF_ERROR(SaveResults(*client, flags.id, flags.offset,
                                     flags.follow, flags.append, patience,
                                     files.get()));
  std::cerr << files->lines() << " results\n";
  return absl::OkStatus();
}

absl::Status Cancel(const OneJob& flags, const CoordinatorPlace& coordinator) {
  SLUICE_ASSIGN_OR_RETURN(const auto client, ConnectTo(coordinator));
  SLUICE_ASSIGN_OR_RETURN(const v1::Job job, client->CancelJob(flags.id));
  Print(job, flags.json);
  return absl::OkStatus();
}

absl::Status Pause(const OneJob& flags, const CoordinatorPlace& coordinator) {
  SLUICE_ASSIGN_OR_RETURN(const auto client, ConnectTo(coordinator));
  SLUICE_ASSIGN_OR_RETURN(const v1::Job job, client->PauseJob(flags.id));
  Print(job, flags.json);
  return absl::OkStatus();
}

absl::Status Resume(const OneJob& flags, const CoordinatorPlace& coordinator) {
  SLUICE_ASSIGN_OR_RETURN(const auto client, ConnectTo(coordinator));
  SLUICE_ASSIGN_OR_RETURN(const v1::Job job, client->ResumeJob(flags.id));
  Print(job, flags.json);
  return absl::OkStatus();
}

struct PriorityFlags {
  OneJob job;
  int32_t priority = 0;

  void AddTo(CLI::App* cmd) {
    job.AddTo(cmd);
    cmd->add_option("priority", priority, "higher first; 0 if nobody says")
        ->required();
  }
};

absl::Status Priority(const PriorityFlags& flags,
                      const CoordinatorPlace& coordinator) {
  SLUICE_ASSIGN_OR_RETURN(const auto client, ConnectTo(coordinator));
  SLUICE_ASSIGN_OR_RETURN(const v1::Job job,
                          client->SetJobPriority(flags.job.id, flags.priority));
  Print(job, flags.job.json);
  return absl::OkStatus();
}

absl::Status Delete(const OneJob& flags, const CoordinatorPlace& coordinator) {
  SLUICE_ASSIGN_OR_RETURN(const auto client, ConnectTo(coordinator));
  SLUICE_RETURN_IF_ERROR(client->DeleteJob(flags.id));
  if (flags.json) {
    std::cout << nlohmann::json{{"id", flags.id}, {"deleted", true}}
              << std::endl;
  } else {
    std::cout << "deleted " << flags.id << std::endl;
  }
  return absl::OkStatus();
}

struct ListFlags {
  int32_t limit = 50;
  bool json = false;

  void AddTo(CLI::App* cmd) {
    cmd->add_option("--limit", limit, "at most so many jobs")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    cmd->add_flag("--json", json, "a JSON object a line on stdout");
  }
};

void PrintRow(const v1::Job& job, bool first) {
  if (first) {
    std::cout << absl::StrFormat("%-14s %-12s %10s %10s %8s %9s  %s\n", "JOB",
                                 "STATE", "REQUESTS", "DONE", "FAILED",
                                 "CANCELLED", "NAME");
  }
  const v1::RequestCounts& counts = job.counts();
  std::cout << absl::StrFormat(
      "%-14s %-12s %10d %10d %8d %9d  %s\n", EscapeForTerminal(job.id()),
      JobStateName(job.state()), counts.total(), counts.completed(),
      counts.failed() - counts.cancelled(), counts.cancelled(),
      EscapeForTerminal(job.spec().name()));
}

absl::Status List(const ListFlags& flags, const CoordinatorPlace& coordinator) {
  SLUICE_ASSIGN_OR_RETURN(const auto client, ConnectTo(coordinator));
  v1::ListJobsRequest request;
  int32_t left = flags.limit;
  bool any = false;
  do {
    request.set_page_size(std::min(left, 1000));
    SLUICE_ASSIGN_OR_RETURN(const v1::ListJobsResponse page,
                            client->ListJobs(request));
    for (const v1::Job& job : page.jobs()) {
      if (flags.json) {
        std::cout << JobToJson(job) << "\n";
      } else {
        PrintRow(job, !any);
      }
      any = true;
    }
    left -= page.jobs_size();
    request.set_page_token(page.next_page_token());
  } while (left > 0 && !request.page_token().empty());
  if (!any && !flags.json) std::cout << "no jobs\n";
  return absl::OkStatus();
}

struct ClusterCommandFlags {
  bool json = false;
  void AddTo(CLI::App* cmd) {
    cmd->add_flag("--json", json, "one JSON object on stdout");
  }
};

absl::Status Cluster(const ClusterCommandFlags& flags,
                     const CoordinatorPlace& coordinator) {
  SLUICE_ASSIGN_OR_RETURN(const auto client, ConnectTo(coordinator));
  SLUICE_ASSIGN_OR_RETURN(const v1::ClusterState state,
                          client->GetClusterState());
  if (flags.json) {
    std::cout << ClusterToJson(state) << std::endl;
  } else {
    std::cout << ClusterToText(state) << std::flush;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobClient>> ConnectTo(
    const CoordinatorPlace& coordinator) {
  SLUICE_ASSIGN_OR_RETURN(const ChannelSecurity security,
                          coordinator.security.Channel());
  return JobClient::Connect(
      WithDefaultPort(coordinator.address, kCoordinatorPort), security,
      coordinator.signals);
}

void AddJobCommands(CLI::App* app, const CoordinatorPlace* coordinator,
                    Command* chosen) {
  // A command with the flags that `run` takes.
  const auto add = [=]<typename Flags>(
                       const char* name, const char* description,
                       const char* footer,
                       absl::Status (*run)(const Flags&,
                                           const CoordinatorPlace&)) {
    CLI::App* cmd = app->add_subcommand(name, description);
    auto flags = std::make_shared<Flags>();
    flags->AddTo(cmd);
    cmd->group(kClusterCommands);
    cmd->footer(footer);
    cmd->callback([=] { *chosen = [=] { return run(*flags, *coordinator); }; });
  };
  add("submit", "Submit a file of requests",
      "Examples:\n"
      "  sluice submit --input prompts.jsonl\n"
      "  sluice submit -i prompts.jsonl --wait --output answers.jsonl\n"
      "  sluice submit -i questions.txt --max-tokens 64 --temperature 0.7\n"
      "  sluice submit -i reviews.csv --prompt 'Is this positive? {text}' -w "
      "\\\n"
      "    -o labels.csv\n"
      "  cat prompts.jsonl | sluice submit -i - --request-id nightly-17",
      Submit);
  add("status", "Show a job",
      "Example:\n  sluice status job_1 --json | jq .request_counts", Status);
  add("watch", "Show a job's progress, throughput and ETA until it ends",
      "With --json prints one JSON object for every change.\n"
      "Example:\n  sluice watch job_1",
      Watch);
  add("results", "Write a job's results, in input order",
      "Examples:\n"
      "  sluice results job_1 --output answers.jsonl --errors errors.jsonl\n"
      "  sluice results job_1 --offset 500 --append -o answers.jsonl\n"
      "  sluice results job_1 --follow | jq .custom_id\n"
      "  sluice results job_2 --input reviews.csv -o labels.csv",
      Results);
  add("cancel", "Stop a job; its results so far are kept",
      "Example:\n  sluice cancel job_1", Cancel);
  add("pause",
      "Begin no further requests of a job; those that have begun are brought "
      "to their end",
      "Example:\n  sluice pause job_1", Pause);
  add("resume", "Go on with a paused job", "Example:\n  sluice resume job_1",
      Resume);
  add("priority", "Move a job before others, or behind them",
      "Examples:\n"
      "  sluice priority job_7 10\n"
      "  sluice priority job_1 -1",
      Priority);
  add("delete", "Delete an ended job together with its results",
      "Example:\n  sluice delete job_1", Delete);
  add("list", "List jobs, newest first", "Example:\n  sluice list --limit 10",
      List);
  add("cluster", "Show the workers, their layers and what they do",
      "Example:\n  sluice cluster", Cluster);
}

}  // namespace sluice
