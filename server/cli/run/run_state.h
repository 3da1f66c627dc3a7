#pragma once

#include <filesystem>
#include <fstream>
#include <istream>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/cli/jobs/output_file.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// A temporary directory for a store, removed with all in it at the end.
class TemporaryStateDir {
 public:
  // `flag` names where else it may be, in an error.
  static absl::StatusOr<std::unique_ptr<TemporaryStateDir>> Make(
      const std::string& flag = "TMPDIR");
  ~TemporaryStateDir();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// What `sluice run` keeps while it runs, so that it can be killed and started
// again: a directory with the store of its job and a manifest, run.json, which
// says of which input, model and options the answers are. It lies beside the
// output, as OUTPUT.sluice, unless the user names a place, and goes when the
// output is whole. Where the output is no file (stdout, a pipe) there is
// nothing to go on with, and it is a temporary directory. Thread-compatible.
class RunState {
 public:
  // What answers depend on, by the flag or the file that it comes from.
  using Facts = std::map<std::string, std::string>;
  struct Options {
    std::string input;  // file, "-" is stdin
    const OutputFile* output = nullptr;
    std::string state_dir;  // "": beside the output
    bool restart = false;   // give up what another run left
  };

  // Finds out whether an earlier run left answers to go on with. Reads the
  // input once; what comes from a pipe is kept till the job has it.
  // kInvalidArgument names what differs from the earlier run, or what in the
  // directory is no run's and would be lost, and the remedy;
  // kFailedPrecondition if another run writes there.
  static absl::StatusOr<std::unique_ptr<RunState>> Open(const Options& options,
                                                        Facts facts);
  // Removes what holds no answers.
  ~RunState();
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // An earlier, equal run may have left answers.
  bool resumes() const { return resumes_; }
  // What it holds serves another run.
  bool durable() const { return temporary_ == nullptr; }
  // Makes one job of all equal runs; "" for a temporary one.
  const std::string& request_id() const { return request_id_; }

  // The input, from its beginning.
  absl::StatusOr<std::istream*> OpenInput();
  // The job has the whole input. kFailedPrecondition if that changed
  // since Open.
  absl::Status OnJobCreated();
  // The run ends before its job does: says what is kept. `job` is as it is now,
  // empty if it came to none; an error, if that can't be found out. One that is
  // known to have no answers is not worth keeping, unless it was there before.
  std::string OnStopped(const absl::StatusOr<v1::Job>& job);
  // The output is whole: removes the directory, or, where the user named it,
  // writes down that the job in it has ended.
  absl::Status Finish();

 private:
  RunState() = default;
  absl::Status OpenDurable(const Options& options, Facts facts);
  absl::Status ReadInput(const Options& options, Facts* facts);
  absl::StatusOr<std::string> CopyInput(int fd, const std::string& name);
  // Says in the directory that it is this run's, unless another's came first.
  absl::Status TakePlace();
  absl::Status WriteManifest();
  absl::Status Clear();
  void Remove();

  std::unique_ptr<TemporaryStateDir> temporary_;  // or null
  std::filesystem::path path_;
  std::string input_;  // what OpenInput opens; "-" is stdin
  std::string request_id_;
  Facts facts_;
  std::string previous_;  // manifest, whose place this run's takes
  bool named_ = false;    // by the user
  bool resumes_ = false;
  bool has_job_ = false;
  bool copied_input_ = false;  // from a pipe, to input_
  bool ours_ = false;          // the manifest is this run's
  bool owned_ = false;         // a run made it, this one or an earlier
  bool made_ = false;          // this one
  bool finished_ = false;
  std::unique_ptr<OutputFile> copy_;  // of the input, not yet in its place
  std::filesystem::file_time_type input_time_;
  std::ifstream stream_;
};

}  // namespace sluice
