#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

// A program's configuration file, which stands under its flags and their
// variables in the environment. It is TOML: each key is the name of a flag
// without its dashes, each value is what the flag takes; a switch takes true or
// false.
//
//     model = "/models/llama"
//     min-workers = 2
class ConfigFile {
 public:
  // Files beyond this are refused.
  static constexpr size_t kMaxBytes = size_t{1} << 20;

  struct Value {
    std::string text;  // as the flag takes it
    int line = 0;      // of the file, from 1
  };

  // Reads `path`. kInvalidArgument, with file and line, for what is no TOML,
  // for a key that is no flag of `app`, and for a value of a kind that its flag
  // does not take; read errors as ReadFile() has them. What flags check of
  // their values is not checked. REQUIRES: AddEnvironmentTwins(app, ...).
  static absl::StatusOr<ConfigFile> Read(const CLI::App& app,
                                         const std::string& path);

  // Sets the variables of the flags that the file has and the environment does
  // not, which CLI11 then takes for flags that are not given. To be called
  // before any thread starts.
  void SetTwins();

  // Returns "FILE, line 3: " for a flag ("--min-workers") whose variable
  // SetTwins() has set, "" for others.
  std::string Where(const std::string& flag) const;

  // By the name of the flag, "min-workers".
  const std::map<std::string, Value>& values() const { return values_; }

 private:
  std::string path_;
  std::map<std::string, Value> values_;
  std::map<std::string, std::string> twins_;  // variables, by name of the flag
  std::map<std::string, int> set_;            // lines, by name of the flag
};

}  // namespace sluice
