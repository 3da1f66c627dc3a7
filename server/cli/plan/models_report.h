#pragma once

#include <string>

#include "server/local_models.h"

namespace sluice {

// What `sluice models` shows, at most 80 columns wide. What comes from files is
// harmless in a terminal.

// The model types that run, and a table of the cache's models: those that don't
// run have the reason below them.
std::string ModelsTable(const LocalModels& models);
// One model, a line for each of its facts.
std::string ModelText(const LocalModel& model);

// {"model_types": [...], "cache": "...", "models": [{...}, ...]}.
std::string ModelsJson(const LocalModels& models);
// One of these models. Its "parameters" are null if they are not known.
std::string ModelJson(const LocalModel& model);

}  // namespace sluice
