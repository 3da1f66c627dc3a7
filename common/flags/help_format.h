#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>

namespace sluice {

// A flag's variable: "SLUICE_MAX_TOKENS" for --max-tokens and "SLUICE_".
std::string TwinName(const std::string& prefix, const std::string& flag);

// Wraps `text` to lines of at most `width` bytes, cut at spaces (a longer word
// has a line of its own), each after the first begun with `indent` spaces.
std::string Wrap(const std::string& text, size_t first_column, size_t indent,
                 size_t width);

// The programs' help: flags in their groups, kMainGroup first, lines as wide as
// the terminal (80 columns elsewhere), with defaults. The rule of environment
// variables is shown once, and only those that break it are listed.
class HelpFormat : public CLI::Formatter {
 public:
  explicit HelpFormat(std::string prefix) : prefix_(std::move(prefix)) {}

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;

 private:
  std::string Row(const std::string& names, const std::string& text) const;
  std::string OptionRow(const CLI::Option* option) const;
  std::string Groups(const CLI::App* app) const;
  std::string Commands(const CLI::App* app) const;

  const std::string prefix_;
};

}  // namespace sluice
