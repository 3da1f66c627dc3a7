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
#include "server/cli/jobs/result_table.h"
#include "server/job_client.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// The flags of tables (CSV, TSV), shared by all commands that read a job's
// input.
struct TableFlags {
  // What a format is when nobody says, for help.
  static constexpr char kFormatHelp[] =
      "jsonl, text, csv, tsv, or auto: by the name, *.txt, *.csv or *.tsv, "
      "else jsonl, or csv with --prompt";
  std::string prompt, id_column, delimiter;

  void AddTo(CLI::App* app);
  bool given() const {
    return !prompt.empty() || !id_column.empty() || !delimiter.empty();
  }
};

// The flags by which a job is described, shared by `submit` and `run`.
struct JobFlags {
  std::string input;
  std::string format = "auto";
  TableFlags table;
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
  // Makes the spec; kInvalidArgument for an unknown format, or flags of tables
  // that are wrong or do not go with it.
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
  // UTF-16; or that a table's header lacks a column. A pipe is not read.
  static absl::Status CheckKind(const std::string& path,
                                const v1::JobSpec& spec);
  InputStream& stream() { return stream_; }

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
  struct Options {
    std::string output = "-", errors;  // errors "": to the output
    std::string format = "auto";       // --output-format, of both
    std::vector<NamedInput> inputs;
    const StopSignals* signals = nullptr;  // see OutputFile::Plan
  };
  // Checks that the files can be written and are no input of the command, and
  // changes nothing. kInvalidArgument names the problem.
  static absl::StatusOr<std::unique_ptr<ResultFiles>> Plan(
      const Options& options);
  static void AddFormatTo(CLI::App* app, std::string* format);

  // Whether a file is a table, in which the input's rows may stand.
  bool has_table() const { return has_table_; }
  // Sets the input's rows, to stand before their answers in tables. To be
  // called before Open.
  void Join(std::unique_ptr<InputRows> rows);
  // Reads the joined rows to their end: InputRows::Check.
  absl::Status CheckRows() { return rows_->Check(); }
  // Begins to write, as OutputFile::Open; Write does so too.
  absl::Status Open(bool append = false);
  // Writes a line, which other processes can read soon. kResourceExhausted when
  // the disk is full; InputRows::Get's errors.
  absl::Status Write(const v1::Result& result);
  // Brings the files to their places; kFailedPrecondition, and nothing is
  // changed, if the joined rows are not the job's.
  absl::Status Commit();

  const OutputFile& output() const { return *output_.file; }
  int64_t lines() const { return lines_; }
  const ErrorCounts& error_counts() const { return error_counts_; }

 private:
  struct File {
    std::unique_ptr<OutputFile> file;  // null: errors go to the output
    std::optional<ResultTable> table;  // else JSON lines
  };
  absl::Status OpenFile(const File& file, bool append);

  File output_, errors_;
  bool has_table_ = false, open_ = false;
  std::unique_ptr<InputRows> rows_;
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

// Returns " (N shared)" for the tokens of its prompts that other requests had
// computed; "" if there are none.
std::string CachedTokensText(const v1::Job& job);

// One line of JSON, for --json.
std::string JobToJson(const v1::Job& job);
// Several lines for people, on any terminal.
std::string JobToText(const v1::Job& job);

}  // namespace sluice
