#include "common/flags/help_format.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/flags/command_line.h"

namespace sluice {
namespace {

constexpr size_t kWidth = 80;
constexpr size_t kMinWidth = 60;
constexpr size_t kMaxWidth = 100;
constexpr size_t kColumn = 29;  // the column of descriptions
constexpr size_t kExampleIndent = 6;

size_t Width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
    return kWidth;
  }
  return std::clamp<size_t>(size.ws_col, kMinWidth, kMaxWidth);
}

// The placeholder of the value: "FILE", "N"; "" for a switch.
std::string Placeholder(const CLI::Option* option) {
  if (option->get_type_size() == 0) return "";
  const std::string type = option->get_type_name();
  const std::string plain = type.substr(0, type.find_first_of(":{ "));
  if (plain == "INT" || plain == "UINT" || plain == "FLOAT") return "N";
  return plain;
}

// Formats a footer: prose is wrapped, a long example is continued by "\".
std::string Footer(const std::string& text, size_t width) {
  std::string out;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.size() <= width) {
      absl::StrAppend(&out, line, "\n");
      continue;
    }
    if (!absl::StartsWith(line, "  ")) {
      absl::StrAppend(&out, Wrap(std::string(line), 0, 0, width), "\n");
      continue;
    }
    const std::string cut =
        Wrap(std::string(line), kExampleIndent, kExampleIndent, width - 2);
    absl::StrAppend(&out, "  ", absl::StrReplaceAll(cut, {{"\n", " \\\n"}}),
                    "\n");
  }
  return out;
}

bool IsHelp(const CLI::Option* option) {
  return option->check_name("--help") || option->check_name("--version");
}

// The groups of an app, in the order in which they are shown.
std::vector<std::string> GroupsInOrder(const CLI::App* app) {
  std::vector<std::string> groups;
  for (const CLI::Option* option : app->get_options()) {
    const std::string& group = option->get_group();
    if (group.empty() || option->get_positional() || IsHelp(option)) continue;
    if (std::find(groups.begin(), groups.end(), group) != groups.end()) {
      continue;
    }
    groups.insert(group == kMainGroup ? groups.begin() : groups.end(), group);
  }
  return groups;
}

}  // namespace

std::string TwinName(const std::string& prefix, const std::string& flag) {
  std::string twin = absl::StrCat(prefix, flag);
  for (char& c : twin) c = c == '-' ? '_' : absl::ascii_toupper(c);
  return twin;
}

std::string Wrap(const std::string& text, size_t first_column, size_t indent,
                 size_t width) {
  std::string out;
  size_t column = first_column;
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    const bool begins = column == first_column && out.empty();
    if (!begins && column + 1 + word.size() > width) {
      absl::StrAppend(&out, "\n", std::string(indent, ' '));
      column = indent;
    } else if (!begins) {
      out += ' ';
      ++column;
    }
    absl::StrAppend(&out, word);
    column += word.size();
  }
  return out;
}

std::string HelpFormat::Row(const std::string& names,
                            const std::string& text) const {
  std::string row = absl::StrCat("  ", names);
  if (row.size() + 2 > kColumn) {
    absl::StrAppend(&row, "\n", std::string(kColumn, ' '));
  } else {
    row.resize(kColumn, ' ');
  }
  absl::StrAppend(&row, Wrap(text, kColumn, kColumn, Width()));
  return absl::StrCat(absl::StripTrailingAsciiWhitespace(row), "\n");
}

std::string HelpFormat::OptionRow(const CLI::Option* option) const {
  std::vector<std::string> names;
  for (const std::string& name : option->get_snames()) {
    names.push_back(absl::StrCat("-", name));
  }
  // The other long names are aliases.
  if (!option->get_lnames().empty()) {
    names.push_back(absl::StrCat("--", option->get_lnames()[0]));
  }
  std::string shown = absl::StrCat(option->get_snames().empty() ? "    " : "",
                                   absl::StrJoin(names, ", "));
  if (names.empty()) shown = option->get_name(true);  // a positional
  const std::string value = names.empty() ? "" : Placeholder(option);
  if (!value.empty()) absl::StrAppend(&shown, " ", value);
  std::string text = option->get_description();
  if (option->get_required() && !names.empty()) text += " (required)";
  if (option->get_type_size() != 0 && !option->get_default_str().empty()) {
    absl::StrAppend(&text, " (default: ", option->get_default_str(), ")");
  }
  if (!option->get_envname().empty() && !option->get_lnames().empty() &&
      option->get_envname() != TwinName(prefix_, option->get_lnames()[0])) {
    absl::StrAppend(&text, " (environment: ", option->get_envname(), ")");
  }
  return Row(shown, text);
}

std::string HelpFormat::Groups(const CLI::App* app) const {
  std::string out;
  std::string named;
  for (const CLI::Option* option : app->get_options()) {
    if (option->get_positional()) named += OptionRow(option);
  }
  if (!named.empty()) absl::StrAppend(&out, "\n", named);
  for (const std::string& group : GroupsInOrder(app)) {
    absl::StrAppend(&out, "\n", group, ":\n");
    for (const bool required : {true, false}) {
      for (const CLI::Option* option : app->get_options()) {
        if (option->get_group() != group || option->get_positional() ||
            IsHelp(option) || option->get_required() != required) {
          continue;
        }
        out += OptionRow(option);
      }
    }
  }
  out += "\nEverywhere:\n";
  if (app->get_parent() != nullptr) {
    for (const CLI::Option* option : app->get_parent()->get_options()) {
      if (!IsHelp(option)) out += OptionRow(option);
    }
  }
  for (const CLI::Option* option : app->get_options()) {
    if (IsHelp(option)) out += OptionRow(option);
  }
  return out;
}

std::string HelpFormat::Commands(const CLI::App* app) const {
  std::string out;
  std::vector<std::string> groups;
  for (const CLI::App* command : app->get_subcommands({})) {
    const std::string& group = command->get_group();
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) {
      groups.push_back(group);
    }
  }
  for (const std::string& group : groups) {
    absl::StrAppend(&out, "\n", group, ":\n");
    for (const CLI::App* command : app->get_subcommands({})) {
      if (command->get_group() != group) continue;
      out += Row(command->get_name(), command->get_description());
    }
  }
  return out;
}

std::string HelpFormat::make_help(const CLI::App* app, std::string name,
                                  CLI::AppFormatMode) const {
  std::string out = Wrap(app->get_description(), 0, 0, Width());
  absl::StrAppend(&out, "\n\n",
                  absl::StripAsciiWhitespace(make_usage(app, name)), "\n",
                  Commands(app), Groups(app));
  if (!app->get_footer().empty()) {
    absl::StrAppend(&out, "\n", Footer(app->get_footer(), Width()));
  }
  absl::StrAppend(
      &out, "\n",
      Wrap(absl::StrCat("Each flag has a twin in the environment, ", prefix_,
                        " and its name in capitals, unless it says otherwise: "
                        "--some-flag is ",
                        TwinName(prefix_, "some-flag"), ". The flag wins."),
           0, 0, Width()),
      "\n");
  return out;
}

}  // namespace sluice
