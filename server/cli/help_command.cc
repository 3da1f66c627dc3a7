// `sluice help` and `sluice version`.

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/flags/command_line.h"
#include "common/version.h"
#include "server/cli/commands.h"

namespace sluice {
namespace {

// Shows the help of the command that `words` name.
absl::Status Help(const CLI::App* app, const std::vector<std::string>& words) {
  std::vector<const char*> line = {"sluice"};
  for (const std::string& word : words) line.push_back(word.c_str());
  if (const std::string unknown =
          UnknownName(*app, static_cast<int>(line.size()), line.data());
      !unknown.empty()) {
    return absl::InvalidArgumentError(unknown);
  }
  std::string name = app->get_name();
  for (const std::string& word : words) {
    for (const CLI::App* command : app->get_subcommands({})) {
      if (command->get_name() != word) continue;
      app = command;
      absl::StrAppend(&name, " ", word);
      break;
    }
  }
  // help() of the whole program would show that of this command.
  std::cout << app->get_formatter()->make_help(app, name,
                                               CLI::AppFormatMode::Normal);
  return absl::OkStatus();
}

}  // namespace

void AddHelpCommands(CLI::App* app, Command* chosen) {
  CLI::App* help = app->add_subcommand("help", "Show what a command takes");
  auto words = std::make_shared<std::vector<std::string>>();
  help->add_option("command", *words, "a command; without one, all are listed");
  help->group(kHelpCommands);
  help->footer("Example:\n  sluice help run");
  help->callback([=] { *chosen = [=] { return Help(app, *words); }; });
  CLI::App* version = app->add_subcommand("version", "Show release and commit");
  version->group(kHelpCommands);
  version->footer("Example:\n  sluice version");
  version->callback([=] {
    *chosen = [] {
      std::cout << BuildVersion() << std::endl;
      return absl::OkStatus();
    };
  });
}

}  // namespace sluice
