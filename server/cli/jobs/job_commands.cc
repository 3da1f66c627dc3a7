// The subcommands that talk to a coordinator.

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/text/utf8.h"
#include "common/threads/clock.h"
#include "coordinator/jobs/job_state.h"
#include "server/cli/commands.h"
#include "server/cli/jobs/cluster_report.h"
#include "server/cli/jobs/follow.h"
#include "server/cli/jobs/job_io.h"
#include "server/cli/jobs/progress.h"
#include "server/flags/checks.h"
#include "server/flags/command_line.h"
#include "server/job_client.h"

namespace sluice {
namespace {

void Print(const v1::Job& job, bool json) {
  std::cout << (json ? JobToJson(job) : JobToText(job)) << std::endl;
}

std::unique_ptr<JobClient> Connect(const std::string& coordinator) {
  return JobClient::Connect(WithDefaultPort(coordinator, kCoordinatorPort));
}

// Says once that the coordinator is away, below what `display` shows.
Patience MakePatience(ProgressDisplay* display) {
  Patience::Options options;
  options.on_away = [display] {
    display->Finish();
    std::cerr << "the coordinator is away; trying again" << std::endl;
  };
  return Patience(std::move(options));
}

// Ctrl-C ends the command, not the job.
void NoteThatJobGoesOn(const v1::Job& job) {
  const std::string id = EscapeForTerminal(job.id());
  NoteOnInterrupt(
      IsTerminal(job.state())
          ? absl::StrCat(id, " has ended; see: sluice results ", id)
          : absl::StrCat(id, " goes on; follow it with: sluice watch ", id));
}

// Watches until the job has ended, with progress on stderr.
absl::StatusOr<v1::Job> WatchWithProgress(JobClient& client,
                                          const std::string& id,
                                          Patience& patience,
                                          ProgressDisplay* display) {
  absl::StatusOr<v1::Job> last =
      WatchToEnd(client, id, patience, [&](const v1::Job& job) {
        NoteThatJobGoesOn(job);
        display->Update(job);
      });
  display->Finish();
  return last;
}

// Brings what the coordinator has into the files; those that are there stay as
// they are unless all of it came.
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

// A job id and the flags every command on one job has.
struct OneJob {
  std::string id;
  bool json = false;

  void AddTo(CLI::App* app) {
    app->add_option("job", id, "the job's id, as `sluice submit` printed it")
        ->required()
        ->check(Utf8Text());
    app->add_flag("--json", json, "one JSON object on stdout");
  }
};

}  // namespace

void AddSubmitCommand(CLI::App* app, const std::string* coordinator,
                      Command* chosen) {
  CLI::App* cmd = app->add_subcommand("submit", "Submit a file of requests");
  struct Flags {
    JobFlags job;
    std::string model, request_id, output, errors;
    std::vector<std::string> metadata;
    int32_t priority = 0;
    bool server_path = false;
    bool wait = false;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();
  flags->job.AddTo(cmd);
  auto* wait = cmd->add_flag("-w,--wait", flags->wait, "watch it to its end")
                   ->group(kMainGroup);
  auto* output =
      cmd->add_option("-o,--output,--output-file", flags->output,
                      "with --wait: write the results here, - is stdout")
          ->group(kMainGroup)
          ->needs(wait);
  cmd->add_option("--model", flags->model,
                  "the served model's name; by default whatever is served")
      ->check(Utf8Text())
      ->envname("SLUICE_SERVED_MODEL_NAME");
  cmd->add_option("--request-id", flags->request_id,
                  "submitting twice with the same id makes one job")
      ->check(Utf8Text());
  cmd->add_option("--priority", flags->priority, "higher ones run first");
  cmd->add_option("--metadata", flags->metadata, "key=value, up to 16 times")
      ->check(Utf8Text());
  cmd->add_flag("--server-path", flags->server_path,
                "--input names a file under the coordinator's --input-root");
  cmd->add_option("--errors", flags->errors,
                  "with --output: write error lines here instead of there")
      ->needs(output);
  cmd->add_flag("--json", flags->json, "one JSON object on stdout");
  cmd->group(kClusterCommands);
  cmd->footer(
      "Examples:\n"
      "  sluice submit --input prompts.jsonl\n"
      "  sluice submit -i prompts.jsonl --wait --output answers.jsonl\n"
      "  sluice submit -i questions.txt --max-tokens 64 --temperature 0.7\n"
      "  cat prompts.jsonl | sluice submit -i - --request-id nightly-17");
  cmd->callback([=] {
    *chosen = [=]() -> absl::Status {
      SLUICE_ASSIGN_OR_RETURN(v1::JobSpec spec, flags->job.ToSpec());
      spec.set_model(flags->model);
      spec.set_request_id(flags->request_id);
      spec.set_priority(flags->priority);
      for (const std::string& pair : flags->metadata) {
        const size_t eq = pair.find('=');
        if (eq == std::string::npos || eq == 0) {
          return absl::InvalidArgumentError(
              absl::StrCat("--metadata \"", pair, "\" is not key=value"));
        }
        (*spec.mutable_metadata())[pair.substr(0, eq)] = pair.substr(eq + 1);
      }
      std::unique_ptr<InputFile> input;
      std::vector<NamedInput> inputs;
      if (flags->server_path) {
        if (const auto at = FindInvalidUtf8(flags->job.input)) {
          return absl::InvalidArgumentError(absl::StrCat(
              "--input \"", flags->job.input, "\" is not UTF-8 at byte ",
              *at + 1, "; give the file on the coordinator such a name"));
        }
        spec.set_input_path(flags->job.input);
      } else {
        SLUICE_ASSIGN_OR_RETURN(input, InputFile::Open(flags->job.input));
        SLUICE_RETURN_IF_ERROR(
            InputFile::CheckKind(flags->job.input, spec.format()));
        inputs.push_back({flags->job.input, "--input"});
      }
      std::unique_ptr<ResultFiles> files;
      if (!flags->output.empty()) {
        SLUICE_ASSIGN_OR_RETURN(
            files, ResultFiles::Plan(flags->output, flags->errors, inputs));
      }
      auto client = Connect(*coordinator);
      ProgressDisplay display(Clock::Real(), flags->json);
      SLUICE_ASSIGN_OR_RETURN(
          v1::Job job,
          client->CreateJob(
              spec, input ? &input->stream() : nullptr, [&](int64_t bytes) {
                display.UpdateText(
                    absl::StrFormat("uploading: %.1f MB", bytes / 1e6));
              }));
      display.Finish();
      NoteThatJobGoesOn(job);
      if (!flags->wait) {
        Print(job, flags->json);
        if (!flags->json) {
          std::cerr << "follow it with: sluice watch " << job.id() << "\n";
        }
        return absl::OkStatus();
      }
      // One for all: who took the job is waited for from here on.
      Patience patience = MakePatience(&display);
      patience.Heard();
      SLUICE_ASSIGN_OR_RETURN(
          job, WatchWithProgress(*client, job.id(), patience, &display));
      if (files != nullptr) {
        SLUICE_RETURN_IF_ERROR(SaveResults(*client, job.id(), 0, false, false,
                                           patience, files.get()));
      }
      Print(job, flags->json);
      if (job.counts().completed() > 0) return absl::OkStatus();
      SLUICE_ASSIGN_OR_RETURN(const ErrorCounts errors,
                              CountErrors(*client, job.id(), patience));
      return CheckAnySucceeded(job, errors);
    };
  });
}

void AddStatusCommand(CLI::App* app, const std::string* coordinator,
                      Command* chosen) {
  CLI::App* cmd = app->add_subcommand("status", "Show a job");
  auto flags = std::make_shared<OneJob>();
  flags->AddTo(cmd);
  cmd->group(kClusterCommands);
  cmd->footer("Example:\n  sluice status job_1 --json | jq .request_counts");
  cmd->callback([=] {
    *chosen = [=]() -> absl::Status {
      SLUICE_ASSIGN_OR_RETURN(v1::Job job,
                              Connect(*coordinator)->GetJob(flags->id));
      Print(job, flags->json);
      return absl::OkStatus();
    };
  });
}

void AddWatchCommand(CLI::App* app, const std::string* coordinator,
                     Command* chosen) {
  CLI::App* cmd = app->add_subcommand(
      "watch", "Show a job's progress, throughput and ETA until it ends");
  auto flags = std::make_shared<OneJob>();
  flags->AddTo(cmd);
  cmd->group(kClusterCommands);
  cmd->footer(
      "With --json prints one JSON object for every change.\n"
      "Example:\n  sluice watch job_1");
  cmd->callback([=] {
    *chosen = [=]() -> absl::Status {
      auto client = Connect(*coordinator);
      ProgressDisplay display(Clock::Real(), flags->json);
      Patience patience = MakePatience(&display);
      if (flags->json) {
        return WatchToEnd(*client, flags->id, patience,
                          [](const v1::Job& job) {
                            NoteThatJobGoesOn(job);
                            Print(job, true);
                          })
            .status();
      }
      SLUICE_ASSIGN_OR_RETURN(
          v1::Job job,
          WatchWithProgress(*client, flags->id, patience, &display));
      Print(job, false);
      return absl::OkStatus();
    };
  });
}

void AddResultsCommand(CLI::App* app, const std::string* coordinator,
                       Command* chosen) {
  CLI::App* cmd =
      app->add_subcommand("results", "Write a job's results, in input order");
  struct Flags {
    std::string id, output = "-", errors;
    int64_t offset = 0;
    bool follow = false;
    bool append = false;
  };
  auto flags = std::make_shared<Flags>();
  cmd->add_option("job", flags->id, "the job's id")
      ->required()
      ->check(Utf8Text());
  cmd->add_option("-o,--output", flags->output, "file, - is stdout")
      ->capture_default_str();
  cmd->add_option("--errors", flags->errors,
                  "write error lines here instead of into --output");
  cmd->add_option("--offset", flags->offset,
                  "skip the results of the first N requests")
      ->check(CLI::NonNegativeNumber);
  cmd->add_flag("-f,--follow", flags->follow,
                "wait for results that are not there yet");
  cmd->add_flag("--append", flags->append, "append to the files");
  cmd->group(kClusterCommands);
  cmd->footer(
      "Examples:\n"
      "  sluice results job_1 --output answers.jsonl --errors errors.jsonl\n"
      "  sluice results job_1 --offset 500 --append -o answers.jsonl\n"
      "  sluice results job_1 --follow | jq .custom_id");
  cmd->callback([=] {
    *chosen = [=]() -> absl::Status {
      SLUICE_ASSIGN_OR_RETURN(
          auto files, ResultFiles::Plan(flags->output, flags->errors, {}));
      ProgressDisplay display(Clock::Real(), true);
      Patience patience = MakePatience(&display);
      SLUICE_RETURN_IF_ERROR(SaveResults(*Connect(*coordinator), flags->id,
                                         flags->offset, flags->follow,
                                         flags->append, patience, files.get()));
      std::cerr << files->lines() << " results\n";
      return absl::OkStatus();
    };
  });
}

void AddCancelCommand(CLI::App* app, const std::string* coordinator,
                      Command* chosen) {
  CLI::App* cmd =
      app->add_subcommand("cancel", "Stop a job; its results so far are kept");
  auto flags = std::make_shared<OneJob>();
  flags->AddTo(cmd);
  cmd->group(kClusterCommands);
  cmd->footer("Example:\n  sluice cancel job_1");
  cmd->callback([=] {
    *chosen = [=]() -> absl::Status {
      SLUICE_ASSIGN_OR_RETURN(v1::Job job,
                              Connect(*coordinator)->CancelJob(flags->id));
      Print(job, flags->json);
      return absl::OkStatus();
    };
  });
}

void AddDeleteCommand(CLI::App* app, const std::string* coordinator,
                      Command* chosen) {
  CLI::App* cmd = app->add_subcommand(
      "delete", "Delete an ended job together with its results");
  auto flags = std::make_shared<OneJob>();
  flags->AddTo(cmd);
  cmd->group(kClusterCommands);
  cmd->footer("Example:\n  sluice delete job_1");
  cmd->callback([=] {
    *chosen = [=]() -> absl::Status {
      SLUICE_RETURN_IF_ERROR(Connect(*coordinator)->DeleteJob(flags->id));
      if (flags->json) {
        std::cout << nlohmann::json{{"id", flags->id}, {"deleted", true}}
                  << std::endl;
      } else {
        std::cout << "deleted " << flags->id << std::endl;
      }
      return absl::OkStatus();
    };
  });
}

void AddListCommand(CLI::App* app, const std::string* coordinator,
                    Command* chosen) {
  CLI::App* cmd = app->add_subcommand("list", "List jobs, newest first");
  struct Flags {
    int32_t limit = 50;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();
  cmd->add_option("--limit", flags->limit, "at most so many jobs")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  cmd->add_flag("--json", flags->json, "a JSON object a line on stdout");
  cmd->group(kClusterCommands);
  cmd->footer("Example:\n  sluice list --limit 10");
  cmd->callback([=] {
    *chosen = [=]() -> absl::Status {
      auto client = Connect(*coordinator);
      v1::ListJobsRequest request;
      int32_t left = flags->limit;
      bool any = false;
      do {
        request.set_page_size(std::min(left, 1000));
        SLUICE_ASSIGN_OR_RETURN(v1::ListJobsResponse page,
                                client->ListJobs(request));
        for (const v1::Job& job : page.jobs()) {
          if (flags->json) {
            std::cout << JobToJson(job) << "\n";
          } else {
            if (!any) {
              std::cout << absl::StrFormat("%-14s %-12s %10s %10s %8s  %s\n",
                                           "JOB", "STATE", "REQUESTS", "DONE",
                                           "FAILED", "NAME");
            }
            std::cout << absl::StrFormat(
                "%-14s %-12s %10d %10d %8d  %s\n", EscapeForTerminal(job.id()),
                JobStateName(job.state()), job.counts().total(),
                job.counts().completed(), job.counts().failed(),
                EscapeForTerminal(job.spec().name()));
          }
          any = true;
        }
        left -= page.jobs_size();
        request.set_page_token(page.next_page_token());
      } while (left > 0 && !request.page_token().empty());
      if (!any && !flags->json) std::cout << "no jobs\n";
      return absl::OkStatus();
    };
  });
}

void AddClusterCommand(CLI::App* app, const std::string* coordinator,
                       Command* chosen) {
  CLI::App* cmd = app->add_subcommand(
      "cluster", "Show the workers, their layers and what they do");
  auto json_flag = std::make_shared<bool>(false);
  cmd->add_flag("--json", *json_flag, "one JSON object on stdout");
  cmd->group(kClusterCommands);
  cmd->footer("Example:\n  sluice cluster");
  cmd->callback([=] {
    *chosen = [=]() -> absl::Status {
      SLUICE_ASSIGN_OR_RETURN(const v1::ClusterState state,
                              Connect(*coordinator)->GetClusterState());
      if (*json_flag) {
        std::cout << ClusterToJson(state) << std::endl;
      } else {
        std::cout << ClusterToText(state) << std::flush;
      }
      return absl::OkStatus();
    };
  });
}

}  // namespace sluice
