#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

  void AddTo(CLI::App* app);
  // kInvalidArgument for an unknown format.
  absl::StatusOr<v1::JobSpec> ToSpec() const;
};

// Opens a job's input, "-" being stdin. kNotFound names the file.
class InputFile {
 public:
  static absl::StatusOr<std::unique_ptr<InputFile>> Open(
      const std::string& path);
  std::istream& stream() { return file_.is_open() ? file_ : std::cin; }

 private:
  std::ifstream file_;
};

// Where result lines go: answers (and, unless an error file is given, errors)
// to `output`, "-" being stdout.
class ResultFiles {
 public:
  // kPermissionDenied or kNotFound names the file that can't be written.
  static absl::StatusOr<std::unique_ptr<ResultFiles>> Open(
      const std::string& output, const std::string& errors, bool append);
  // kResourceExhausted when the disk is full.
  absl::Status Write(const v1::Result& result);
  // Flushes; reports what Write could not.
  absl::Status Close();
  int64_t lines() const { return lines_; }

 private:
  std::string output_name_;
  std::string errors_name_;
  std::ofstream output_file_;
  std::ofstream errors_file_;
  std::ostream* output_ = nullptr;
  std::ostream* errors_ = nullptr;
  int64_t lines_ = 0;
};

// One line of JSON, for --json.
std::string JobToJson(const v1::Job& job);
// Several lines for people, on any terminal.
std::string JobToText(const v1::Job& job);

}  // namespace sluice
