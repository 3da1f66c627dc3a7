#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace sluice {

// Flags that several programs have, each declared once: its name, its help, its
// default and its check. Differences, such as its group, are left to the
// caller.

CLI::Option* AddCoordinatorAddress(CLI::App* app, std::string* address);
CLI::Option* AddDevice(CLI::App* app, std::string* device);
CLI::Option* AddDiskDir(CLI::App* app, std::string* dir);
CLI::Option* AddDType(CLI::App* app, std::string* dtype);
CLI::Option* AddLoadFormat(CLI::App* app, std::string* format);
// The flags of the log: what is written of it, and how.
struct LogFlags {
  std::string level = "info", format = "text";

  void AddTo(CLI::App* app);
  // Sets both for this process; returns what is wrong with them, or "".
  // `component` is the program's name.
  std::string Apply(const std::string& component) const;
};
CLI::Option* AddMetricsPort(CLI::App* app, int* port);
// `which` and `otherwise` end what is said of the directory and of the flag.
CLI::Option* AddModel(CLI::App* app, std::string* model,
                      const std::string& which,
                      const std::string& otherwise = "");
CLI::Option* AddPort(CLI::App* app, int* port);
CLI::Option* AddTensorParallel(CLI::App* app, std::string* ranks);

}  // namespace sluice
