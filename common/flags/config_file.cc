#include "common/flags/config_file.h"

#include <toml++/toml.h>

#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/flags/command_line.h"
#include "common/host/read_file.h"
#include "common/status_macros.h"
#include "common/text/suggest.h"
#include "common/text/text.h"

namespace sluice {
namespace {

// The flags that a file may set: the visible ones with a variable.
std::map<std::string, const CLI::Option*> Flags(const CLI::App& app) {
  std::map<std::string, const CLI::Option*> flags;
  for (const CLI::Option* option : app.get_options()) {
    const bool in_file = !option->get_lnames().empty() &&
                         !option->get_envname().empty() &&
                         option->get_lnames()[0] != kConfigFlag;
    if (in_file) flags.emplace(option->get_lnames()[0], option);
  }
  return flags;
}

// What a value other than a string, a number, true or false is called.
const char* KindOf(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (node.is_array()) return "a list";
  return "a date or a time";
}

// Returns the value as a flag takes it on the command line; nothing for a kind
// that none takes.
std::optional<std::string> TextOf(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) {
    return absl::StrCat(number->get());
  }
  if (const auto* number = node.as_floating_point()) {
    return absl::StrFormat("%.17g", number->get());
  }
  if (const auto* truth = node.as_boolean()) {
    return truth->get() ? "true" : "false";
  }
  return std::nullopt;
}

// Says what is wrong with the value's kind; "" if nothing is.
std::string WrongKind(const CLI::Option& option, const std::string& key,
                      const toml::node& node) {
  const bool is_switch = option.get_items_expected_max() == 0;
  if (is_switch && !node.is_boolean()) {
    return absl::StrCat(key, " is a switch: write true or false");
  }
  if (!is_switch && node.is_boolean()) {
    return absl::StrCat(key, " takes a value, not true or false; see --help");
  }
  if (TextOf(node).has_value()) return "";
  return absl::StrCat(key, " is ", KindOf(node),
                      "; write a string, a number, true or false");
}

std::string UnknownKey(const std::map<std::string, const CLI::Option*>& flags,
                       const std::string& key, const toml::node& node) {
  std::vector<std::string> names;
  for (const auto& [name, option] : flags) names.push_back(name);
  const std::string shown = EscapeForTerminal(key);
  // Only the last of a table's keys can be a flag.
  if (node.is_table() && !flags.contains(key)) {
    return absl::StrCat("[", shown, "]: keys stand in no table; take it out");
  }
  const std::string meant =
      ClosestTo(absl::StrReplaceAll(key, {{"_", "-"}}), names);
  return absl::StrCat("unknown key ", shown,
                      meant.empty() ? "; keys are the flags of --help"
                                    : "; did you mean " + meant + "?");
}

}  // namespace

absl::StatusOr<ConfigFile> ConfigFile::Read(const CLI::App& app,
                                            const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          ReadSmallFile(path, kMaxBytes));
  const std::string name = EscapeForTerminal(path);
  const auto mistake = [&name](int line, absl::string_view what) {
    return InvalidArgument(name, ", line ", line, ": ", what);
  };
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& e) {
    return mistake(static_cast<int>(e.source().begin.line),
                   EscapeForTerminal(std::string(e.description())));
  }
  ConfigFile file;
  file.path_ = name;
  const std::map<std::string, const CLI::Option*> flags = Flags(app);
  for (const auto& [toml_key, node] : table) {
    const std::string key(toml_key.str());
    const int line = static_cast<int>(toml_key.source().begin.line);
    const auto found = flags.find(key);
    if (found == flags.end()) {
      return mistake(line, UnknownKey(flags, key, node));
    }
    const std::string wrong = WrongKind(*found->second, key, node);
    if (!wrong.empty()) return mistake(line, wrong);
    file.values_[key] = {*TextOf(node), line};
    file.twins_[key] = found->second->get_envname();
  }
  return file;
}

void ConfigFile::SetTwins() {
  for (const auto& [key, value] : values_) {
    const std::string& twin = twins_.at(key);
    // CLI11 takes an empty variable for none.
    const char* const there = getenv(twin.c_str());  // NOLINT: no threads yet
    if (there != nullptr && *there != '\0') continue;
    setenv(twin.c_str(), value.text.c_str(), 1);  // NOLINT: no threads yet
    set_[key] = value.line;
  }
}

std::string ConfigFile::Where(const std::string& flag) const {
  if (!absl::StartsWith(flag, "--")) return "";
  const auto found = set_.find(flag.substr(2));
  if (found == set_.end()) return "";
  return absl::StrCat(path_, ", line ", found->second, ": ");
}

}  // namespace sluice
