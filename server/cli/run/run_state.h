#pragma once

#include <filesystem>
#include <istream>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/host/stop_signals.h"
#include "coordinator/jobs/job_manager.h"
#include "server/cli/jobs/input_stream.h"
#include "server/cli/jobs/output_file.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// A temporary directory for a store, removed with its contents at the end, also
// if a signal ends the process at once.
class TemporaryStateDir {
 public:
  // `signals` must outlive it. Errors name `flag`, by which the user may choose
  // another directory.
  static absl::StatusOr<std::unique_ptr<TemporaryStateDir>> Make(
      StopSignals* signals, const std::string& flag = "TMPDIR");
  TemporaryStateDir(StopSignals* signals, std::filesystem::path path);
  ~TemporaryStateDir();
  const std::filesystem::path& path() const { return path_; }

 private:
  // Others may be writing there.
  void Remove() const;

  const std::filesystem::path path_;
  const StopSignals::AtEnd at_end_;
};

// The state of `sluice run`, which can be killed and started again: a directory
// with the store of its job and a manifest, run.json, with the input, model and
// options that the answers belong to. It lies beside the output, as
// OUTPUT.sluice, unless the user names a place, and is removed when the output
// is complete. If the output is no file (stdout, a pipe), or its folder takes
// no other, a run can't be resumed, and it is a temporary directory.
// Thread-compatible.
class RunState {
 public:
  // The facts that answers depend on, by their flag or file.
  using Facts = std::map<std::string, std::string>;
  struct Options {
    std::string input;  // file, "-" is stdin
    const OutputFile* output = nullptr;
    std::string state_dir;  // "": beside the output
    bool restart = false;   // discard another run's state
    // The input is read again beside the answers: one that can't be, as a pipe,
    // is kept until then.
    bool keep_input = false;
    StopSignals* signals = nullptr;  // must outlive the state
  };

  // Opens the state, and resumes an earlier run if there is one. Reads the
  // input once; data from a pipe is kept until the job has it. kInvalidArgument
  // names the difference from the earlier run, or the foreign file in the
  // directory that would be lost, and the remedy; kFailedPrecondition if
  // another run writes there; kCancelled if a signal asks to stop.
  static absl::StatusOr<std::unique_ptr<RunState>> Open(const Options& options,
                                                        Facts facts);
  // Removes a state without answers.
  ~RunState();
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Whether an earlier, equal run may have left answers.
  bool resumes() const { return resumes_; }
  // Whether another run can resume from it.
  bool durable() const { return temporary_ == nullptr; }
  // The request_id that gives all equal runs one job; "" for a temporary state.
  const std::string& request_id() const { return request_id_; }

  // Opens the input from its beginning.
  absl::StatusOr<InputStream*> OpenInput();
  // The file by which the input can be read again.
  const std::string& input() const { return input_; }
  // Called when the job has the whole input. kFailedPrecondition if that
  // changed since Open.
  absl::Status OnJobCreated();
  // Called when the run ends before its job; returns what is kept. `job` is the
  // job's state, empty if there is no job, or an error if it is unknown;
  // `begun` says which tokens of requests without an answer are stored. A job
  // known to have neither answers nor tokens is not kept, unless it existed
  // before.
  std::string OnStopped(const absl::StatusOr<v1::Job>& job,
                        const JobManager::Kept& begun = {});
  // Called when the output is complete: removes the directory, or, if the user
  // named it, records that its job has ended.
  absl::Status Finish();

 private:
  explicit RunState(StopSignals* signals) : signals_(signals) {}
  absl::Status OpenDurable(const Options& options, Facts facts);
  absl::Status ReadInput(const Options& options, Facts* facts);
  absl::StatusOr<std::string> CopyInput(int fd, const std::string& name);
  absl::StatusOr<std::string> DigestOf(int fd, const std::string& name,
                                       OutputFile* copy);
  // Writes this run's manifest, unless another run's came first.
  absl::Status TakePlace();
  absl::Status WriteManifest();
  absl::Status Clear();
  void Remove();

  StopSignals* const signals_;
  std::unique_ptr<TemporaryStateDir> temporary_;  // or null
  std::filesystem::path path_;
  std::string input_;  // the path for OpenInput; "-" is stdin
  std::string request_id_;
  Facts facts_;
  std::string previous_;  // the manifest that this run's replaces
  bool named_ = false;    // by the user
  bool resumes_ = false;
  bool has_job_ = false;
  bool copied_input_ = false;  // from a pipe, to input_
  bool keeps_input_ = false;   // after the job was made
  bool ours_ = false;          // the manifest is this run's
  bool owned_ = false;         // a run made it, this one or an earlier
  bool made_ = false;          // this run made it
  bool finished_ = false;
  std::unique_ptr<OutputFile> copy_;  // of the input, not yet in its place
  std::filesystem::file_time_type input_time_;
  std::unique_ptr<InputStream> stream_;
};

}  // namespace sluice
