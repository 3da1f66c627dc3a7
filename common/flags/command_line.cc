#include "common/flags/command_line.h"

#include <algorithm>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/flags/config_file.h"
#include "common/flags/foreign_flags.h"
#include "common/flags/help_format.h"
#include "common/host/logging.h"
#include "common/text/suggest.h"
#include "common/text/text.h"

namespace sluice {
namespace {

// How the variables of all programs begin.
constexpr char kVariables[] = "SLUICE_";

// The full name of a command, such as "sluice run".
std::string FullName(const CLI::App& app) {
  return app.get_parent() == nullptr
             ? app.get_name()
             : absl::StrCat(FullName(*app.get_parent()), " ", app.get_name());
}

// Finds an option of `app` or, as with fallthrough, of its parent commands.
const CLI::Option* FindOption(const CLI::App* app, const std::string& name) {
  for (; app != nullptr; app = app->get_parent()) {
    if (const CLI::Option* option = app->get_option_no_throw(name)) {
      return option;
    }
  }
  return nullptr;
}

std::vector<std::string> ShownFlags(const CLI::App* app) {
  std::vector<std::string> names;
  for (; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_group().empty() || option->get_lnames().empty()) continue;
      names.push_back(absl::StrCat("--", option->get_lnames()[0]));
    }
  }
  return names;
}

std::string UnknownFlag(const CLI::App& app, const std::string& typed) {
  const std::string shown = EscapeForTerminal(typed);
  if (const std::string other = ForeignFlag(app, typed); !other.empty()) {
    return absl::StrCat(shown, ": ", other);
  }
  const std::string meant = ClosestTo(typed, ShownFlags(&app));
  if (!meant.empty()) {
    return absl::StrCat("unknown flag ", shown, "; did you mean ", meant, "?");
  }
  return absl::StrCat("unknown flag ", shown, "; `", FullName(app),
                      " --help` lists those that there are");
}

std::string UnknownCommand(const CLI::App& app, const std::string& typed) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    names.push_back(command->get_name());
  }
  const std::string shown = EscapeForTerminal(typed);
  const std::string meant = ClosestTo(typed, names);
  if (!meant.empty()) {
    return absl::StrCat("unknown command '", shown, "'; did you mean '", meant,
                        "'?");
  }
  return absl::StrCat("unknown command '", shown, "'; `", FullName(app),
                      " --help` lists those that there are");
}

// The command that the command line names, or `app`.
const CLI::App* Chosen(const CLI::App* app) {
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
  }
  return app;
}

bool IsNumber(const std::string& text) {
  return text.size() > 1 && (absl::ascii_isdigit(text[1]) || text[1] == '.');
}

void SetFormatter(CLI::App* app, const std::shared_ptr<HelpFormat>& format) {
  app->formatter(format);
  for (CLI::App* command : app->get_subcommands({})) {
    SetFormatter(command, format);
  }
}

void AddTwins(CLI::App* app, const std::string& prefix) {
  for (CLI::Option* option : app->get_options()) {
    const std::vector<std::string>& names = option->get_lnames();
    if (names.empty() || option->get_group().empty()) continue;
    if (names[0] == "help" || names[0] == "version") continue;
    if (option->get_envname().empty()) {
      option->envname(TwinName(prefix, names[0]));
    }
  }
  for (CLI::App* command : app->get_subcommands({})) {
    AddTwins(command, prefix);
  }
}

// Says what CLI11 found wrong, where its own words do not tell what to do.
std::string MistakeText(const CLI::ParseError& error, const std::string& help) {
  std::string text = error.what();
  // CLI11 names no hidden option; its check does.
  if (absl::StartsWith(text, ": ")) text = text.substr(2);
  const absl::string_view view = text;
  const std::string name = text.substr(0, text.find(':'));
  if (absl::StrContains(view, ": At Most 1 required but received ")) {
    return absl::StrCat(name, " is given more than once; give it once");
  }
  if (absl::EndsWith(view, " missing") &&
      absl::StrContains(view, ": 1 required")) {
    return absl::StrCat(name, " needs a value; see `", help, " --help`");
  }
  absl::string_view rest = view;
  if (absl::ConsumePrefix(&rest, "Could not convert: ")) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(rest, absl::MaxSplits(" = ", 1));
    return absl::StrCat(parts.first, ": \"", EscapeForTerminal(parts.second),
                        "\" is not a number as it takes; see `", help,
                        " --help`");
  }
  return EscapeForTerminal(text);
}

void AddKnownVariables(const CLI::App* app, std::vector<std::string>* names) {
  for (const CLI::Option* option : app->get_options()) {
    if (const std::string name = option->get_envname(); !name.empty()) {
      names->push_back(name);
    }
  }
  for (const CLI::App* command : app->get_subcommands({})) {
    AddKnownVariables(command, names);
  }
}

}  // namespace

std::vector<std::string> UnknownVariables(const CLI::App& app,
                                          const std::string& prefix,
                                          const char* const* environment) {
  std::vector<std::string> known = {"SLUICE_TOKEN"};  // see SecurityFlags
  AddKnownVariables(&app, &known);
  std::vector<std::string> mistakes;
  for (; *environment != nullptr; ++environment) {
    const absl::string_view entry = *environment;
    const std::string name(entry.substr(0, entry.find('=')));
    if (!absl::StartsWith(name, kVariables) ||
        std::find(known.begin(), known.end(), name) != known.end()) {
      continue;
    }
    // A variable that has the prefix of one program, though it is everybody's.
    std::string meant;
    absl::string_view rest = name;
    const bool own = prefix != kVariables && absl::ConsumePrefix(&rest, prefix);
    const std::string shared = absl::StrCat(kVariables, rest);
    if (own && std::find(known.begin(), known.end(), shared) != known.end()) {
      meant = shared;
    } else {
      meant = ClosestTo(name, known);
    }
    // Others may be for another program.
    if (!own && (meant.empty() || TypingDistance(name, meant) > 2)) continue;
    mistakes.push_back(absl::StrCat(
        EscapeForTerminal(name), " is set, but is no flag's variable",
        meant.empty() ? "" : absl::StrCat("; did you mean ", meant, "?")));
  }
  return mistakes;
}

void AddEnvironmentTwins(CLI::App* app, const std::string& prefix) {
  AddTwins(app, prefix);
  SetFormatter(app, std::make_shared<HelpFormat>(prefix));
}

std::string UnknownName(const CLI::App& app, int argc,
                        const char* const* argv) {
  const CLI::App* current = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") return "";
    if (word.size() < 2 || word[0] != '-') {
      if (current->get_subcommands({}).empty()) continue;
      const CLI::App* next = nullptr;
      for (const CLI::App* command : current->get_subcommands({})) {
        if (command->get_name() == word) next = command;
      }
      if (next == nullptr) return UnknownCommand(*current, word);
      current = next;
      continue;
    }
    const bool is_long = absl::StartsWith(word, "--");
    if (!is_long && IsNumber(word)) continue;
    const std::string name =
        is_long ? word.substr(0, word.find('=')) : word.substr(0, 2);
    const CLI::Option* option = FindOption(current, name);
    if (option == nullptr) return UnknownFlag(*current, is_long ? name : word);
    for (const char* ends : {"--help", "--version"}) {
      if (option->check_name(ends)) return "";
    }
    // The next word is the flag's value, whatever it looks like.
    const bool has_value = word.size() > name.size();
    if (option->get_items_expected_min() > 0 && !has_value) ++i;
  }
  return "";
}

std::string EarlyValue(const CLI::App& app, int argc, const char* const* argv,
                       const std::string& flag) {
  std::string value;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") break;
    if (absl::StartsWith(word, flag + "=")) {
      value = word.substr(flag.size() + 1);
      continue;
    }
    const CLI::Option* const option = app.get_option_no_throw(word);
    if (option == nullptr || option->get_items_expected_min() == 0) continue;
    ++i;  // the flag's value, whatever it looks like
    if (word == flag && i < argc) value = argv[i];
  }
  const std::string twin = app.get_option(flag)->get_envname();
  const char* const set = getenv(twin.c_str());  // NOLINT: no threads yet
  return value.empty() && set != nullptr ? set : value;
}

std::optional<int> ParseCommandLine(CLI::App* app, int argc,
                                    const char* const* argv,
                                    const LogFlags* log,
                                    const ConfigFile* config) {
  const auto mistake = [=](const std::string& what) {
    const std::string flag = what.substr(0, what.find_first_of(": "));
    const bool typed = std::any_of(argv + 1, argv + argc, [&](const char* a) {
      return a == flag || absl::StartsWith(a, flag + "=");
    });
    std::cerr << app->get_name() << ": "
              << (config != nullptr && !typed ? config->Where(flag) : "")
              << what << "\n";
    return kExitUsage;
  };
  const bool has_commands = !app->get_subcommands({}).empty();
  if (argc < 2 && has_commands) {
    std::cerr << app->help();
    return kExitUsage;
  }
  if (const std::string unknown = UnknownName(*app, argc, argv);
      !unknown.empty()) {
    return mistake(unknown);
  }
  try {
    app->parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app->exit(e);
  } catch (const CLI::RequiredError& e) {
    const CLI::App* command = Chosen(app);
    return mistake(absl::StrCat(has_commands && command == app
                                    ? "a command is required"
                                    : EscapeForTerminal(e.what()),
                                "; see `", FullName(*command), " --help`"));
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> extra = app->remaining(true);
    return mistake(absl::StrCat(
        "unexpected '", extra.empty() ? "" : EscapeForTerminal(extra.front()),
        "'; see `", FullName(*Chosen(app)), " --help`"));
  } catch (const CLI::ParseError& e) {
    return mistake(MistakeText(e, FullName(*Chosen(app))));
  }
  if (log != nullptr) {
    const std::string wrong = log->Apply(app->get_name());
    if (!wrong.empty()) return mistake(wrong);
  }
  return std::nullopt;
}

}  // namespace sluice
