// `sluice models`: what runs, and what is here.

#include <iostream>
#include <memory>
#include <string>

#include "common/status_macros.h"
#include "server/cli/commands.h"
#include "server/cli/plan/models_report.h"
#include "server/cli/plan/models_speed.h"
#include "server/local_models.h"

namespace sluice {
namespace {

struct ModelsFlags {
  std::string name;
  bool json = false;
};

absl::Status Show(const ModelsFlags& flags) {
  if (flags.name.empty()) {
    const LocalModels models = ExamineCache();
    std::cout << (flags.json ? ModelsJson(models) + "\n" : ModelsTable(models));
  } else {
    SLUICE_ASSIGN_OR_RETURN(LocalModel model, ExamineModel(flags.name));
    if (model.runs()) {
      const absl::StatusOr<ModelSpeed> speed = PredictHere(model);
      if (speed.ok()) {
        model.speed = *speed;
      } else {
        model.no_speed = std::string(speed.status().message());
      }
    }
    std::cout << (flags.json ? ModelJson(model) + "\n" : ModelText(model));
  }
  std::cout.flush();
  if (!std::cout) return absl::UnknownError("cannot write to stdout");
  return absl::OkStatus();
}

}  // namespace

void AddModelsCommand(CLI::App* app, Command* chosen) {
  CLI::App* cmd = app->add_subcommand(
      "models",
      "The kinds of models that run, and the models of the Hugging Face cache: "
      "whether each runs, or why not");
  auto flags = std::make_shared<ModelsFlags>();
  cmd->group(kPlanCommands);
  cmd->add_option("model", flags->name,
                  "of this model alone, in detail: org/name[@revision] of the "
                  "cache, or a directory");
  cmd->add_flag("--json", flags->json, "JSON on stdout instead of a table");
  cmd->footer(
      "Examples:\n"
      "  sluice models\n"
      "  sluice models org/name\n"
      "  sluice models ./llama --json");
  cmd->callback([=] { *chosen = [=] { return Show(*flags); }; });
}

}  // namespace sluice
