#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/cli/jobs/input_stream.h"
#include "server/cli/jobs/output_file.h"
#include "server/job_client.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// The flags by which a job is described, shared by `submit` and `run`.
struct JobFlags {
  std::string input;
  std::string format = "auto";
  std::string name;
  std::optional<int32_t> max_tokens;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  bool ignore_eos = false;
  bool chat = false;
  std::optional<std::string> system;

  void AddTo(CLI::App* app);
  // Makes the spec; kInvalidArgument for an unknown format.
  absl::StatusOr<v1::JobSpec> ToSpec() const;
};

// Opens a job's input, "-" being stdin. kNotFound or kInvalidArgument names the
// file.
class InputFile {
 public:
  // Checks access to `path` without opening it: a pipe is opened once.
  static absl::Status Check(const std::string& path);
  // `signals` must outlive the file; see InputStream.
  static absl::StatusOr<std::unique_ptr<InputFile>> Open(
      const std::string& path, const StopSignals* signals);
  // Checks a file's kind: kInvalidArgument, with the remedy, if its beginning
  // shows that none of its lines can be a request: packed, a table, a list,
  // UTF-16. A pipe is not read.
  static absl::Status CheckKind(const std::string& path,
                                v1::InputFormat format);
  std::istream& stream() { return stream_; }

 private:
  InputFile(FileDescriptor fd, const std::string& path,
            const StopSignals* signals)
      : stream_(std::move(fd), path, signals) {}
  InputStream stream_;
};

// Counts errors among results. Thread-compatible.
class ErrorCounts {
 public:
  void Add(const v1::Result& result);
  int64_t total() const { return total_; }
  // The counts: "2 prompt_too_long, 1 invalid_json; the first: line 3: ...".
  std::string Text() const;

 private:
  int64_t total_ = 0;
  std::map<std::string, int64_t> by_code_;
  std::string first_;
};

// The files of result lines: answers (and, unless an error file is given,
// errors) go to `output`, "-" being stdout. Existing files stay until Commit().
// Thread-compatible.
class ResultFiles {
 public:
  // Checks that the files can be written and are no input of the command, and
  // changes nothing. kInvalidArgument names the problem. For `signals`, see
  // OutputFile::Plan.
  static absl::StatusOr<std::unique_ptr<ResultFiles>> Plan(
      const std::string& output, const std::string& errors,
      const std::vector<NamedInput>& inputs,
      const StopSignals* signals = nullptr);
  // Begins to write, as OutputFile::Open; Write does so too.
  absl::Status Open(bool append = false);
  // Writes a line, which other processes can read soon. kResourceExhausted when
  // the disk is full.
  absl::Status Write(const v1::Result& result);
  absl::Status Commit();

  const OutputFile& output() const { return *output_; }
  int64_t lines() const { return lines_; }
  const ErrorCounts& error_counts() const { return error_counts_; }

 private:
  std::unique_ptr<OutputFile> output_;
  std::unique_ptr<OutputFile> errors_;  // null: to output_
  int64_t lines_ = 0;
  double flushed_at_ = 0;
  ErrorCounts error_counts_;
};

// OK if any request of an ended job succeeded, and it was not cancelled; else
// kAborted with the errors.
absl::Status CheckAnySucceeded(const v1::Job& job, const ErrorCounts& errors);

// Tells how many requests of a running job have no max_tokens, or how many
// answers of an ended one were cut by the default. "" if there are none.
std::string DefaultMaxTokensText(const v1::Job& job);

// One line of JSON, for --json.
std::string JobToJson(const v1::Job& job);
// Several lines for people, on any terminal.
std::string JobToText(const v1::Job& job);

}  // namespace sluice
