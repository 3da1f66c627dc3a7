#include "runtime/model/embedding_config.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "runtime/model/config_reader.h"
#include "runtime/model/json_file.h"

namespace sluice {
namespace {

using nlohmann::json;

struct Mode {
  const char* key;   // of a boolean
  const char* name;  // as "pooling_mode"
  Pooling pooling;
};
constexpr Mode kModes[] = {
    {"pooling_mode_cls_token", "cls", Pooling::kFirstToken},
    {"pooling_mode_lasttoken", "lasttoken", Pooling::kLastToken},
    {"pooling_mode_max_tokens", "max", Pooling::kMax},
    {"pooling_mode_mean_tokens", "mean", Pooling::kMean},
    {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens",
     Pooling::kMeanSqrtLen},
    {"pooling_mode_weightedmean_tokens", "weightedmean",
     Pooling::kWeightedMean},
};

// Reads 1_Pooling/config.json: one mode, as a name or as one of the booleans.
absl::StatusOr<Pooling> ReadPooling(const json& config) {
  ConfigReader reader(config);
  std::vector<std::string> names;
  if (reader.Has("pooling_mode")) {
    names.push_back(reader.String("pooling_mode", ""));
  } else {
    for (const Mode& mode : kModes) {
      if (reader.Bool(mode.key, false)) names.push_back(mode.name);
    }
  }
  SLUICE_RETURN_IF_ERROR(reader.status());
  if (names.size() != 1) {
    return Unimplemented(
        names.empty() ? "no pooling_mode is true"
                      : absl::StrCat("several poolings beside each other (",
                                     absl::StrJoin(names, ", "), ")"),
        "; one is supported");
  }
  const auto* const mode =
      std::find_if(std::begin(kModes), std::end(kModes),
                   [&](const Mode& m) { return m.name == names.front(); });
  if (mode != std::end(kModes)) return mode->pooling;
  return Unimplemented("pooling_mode ", QuoteForMessage(names.front()),
                       " is not supported");
}

absl::StatusOr<EmbeddingConfig::LogitScore> ReadLogitScore(const json& config,
                                                           int32_t vocab_size) {
  ConfigReader reader(config);
  const auto yes = reader.OptionalInt("true_token_id", 0, vocab_size - 1);
  const auto no = reader.OptionalInt("false_token_id", 0, vocab_size - 1);
  SLUICE_RETURN_IF_ERROR(reader.status());
  if (!yes) return absl::InvalidArgumentError("true_token_id is missing");
  return EmbeddingConfig::LogitScore{*yes, no};
}

// A module as modules.json names it.
struct Module {
  std::string type;  // without the Python modules that it is in
  std::string path;
};

absl::StatusOr<Module> ReadModule(const json& entry) {
  if (!entry.is_object()) {
    return InvalidArgument("a module must be an object, but is ",
                           entry.type_name());
  }
  ConfigReader reader(entry);
  Module module{reader.String("type", ""), reader.String("path", "")};
  SLUICE_RETURN_IF_ERROR(reader.status());
  module.type.erase(0, module.type.rfind('.') + 1);
  const std::filesystem::path path(module.path);
  if (path.is_absolute() ||
      std::find(path.begin(), path.end(), "..") != path.end()) {
    return InvalidArgument("the path ", QuoteForMessage(module.path),
                           " leaves the model's directory");
  }
  return module;
}

// Takes the next module in.
absl::Status AddModule(const std::filesystem::path& directory,
                       const Module& module, int32_t vocab_size, bool* pools,
                       EmbeddingConfig* config) {
  const auto unsupported = [&](absl::string_view why) {
    return Unimplemented("the module ", QuoteForMessage(module.path), " (",
                         module.type, ") ", why);
  };
  const std::filesystem::path file = directory / module.path / "config.json";
  if (module.type == "Transformer") {
    if (module.path.empty()) return absl::OkStatus();
    return unsupported("is not in the model's directory itself");
  }
  if (module.type == "Pooling") {
    if (*pools) return unsupported("comes after another pooling");
    SLUICE_ASSIGN_OR_RETURN(const json pooling, ReadJsonObject(file));
    SLUICE_ASSIGN_OR_RETURN(config->pooling,
                            Annotate(ReadPooling(pooling), file.string()));
    *pools = config->from_files = true;
    return absl::OkStatus();
  }
  if (module.type == "Normalize") {
    if (*pools) return absl::OkStatus();
    return unsupported("comes before a pooling");
  }
  if (module.type == "LogitScore") {
    SLUICE_ASSIGN_OR_RETURN(const json score, ReadJsonObject(file));
    SLUICE_ASSIGN_OR_RETURN(
        config->logit_score,
        Annotate(ReadLogitScore(score, vocab_size), file.string()));
    return absl::OkStatus();
  }
  return unsupported("is nothing that Sluice has");
}

absl::Status ReadLimits(const std::filesystem::path& directory,
                        EmbeddingConfig* config) {
  const std::filesystem::path file = directory / "sentence_bert_config.json";
  const absl::StatusOr<json> limits = ReadJsonObject(file);
  if (absl::IsNotFound(limits.status())) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(limits.status());
  ConfigReader reader(*limits);
  config->max_tokens =
      reader
          .OptionalInt("max_seq_length", 1, std::numeric_limits<int32_t>::max())
          .value_or(0);
  if (reader.Has("do_lower_case") && reader.Bool("do_lower_case", false)) {
    reader.Unsupported("do_lower_case", "true");
  }
  return Annotate(reader.status(), file.string());
}

}  // namespace

absl::StatusOr<EmbeddingConfig> ReadEmbeddingConfig(
    const std::filesystem::path& directory, int32_t vocab_size) {
  EmbeddingConfig config;
  const std::filesystem::path file = directory / "modules.json";
  const absl::StatusOr<json> modules = ReadJsonArray(file);
  if (absl::IsNotFound(modules.status())) return config;
  SLUICE_RETURN_IF_ERROR(modules.status());
  bool pools = false, normalizes = false;
  for (const json& entry : *modules) {
    const absl::StatusOr<Module> module =
        Annotate(ReadModule(entry), file.string());
    SLUICE_RETURN_IF_ERROR(module.status());
    SLUICE_RETURN_IF_ERROR(
        Annotate(AddModule(directory, *module, vocab_size, &pools, &config),
                 file.string()));
    normalizes = normalizes || module->type == "Normalize";
  }
  if (!pools && !config.logit_score) {
    return Unimplemented(file.string(),
                         " names no pooling; without one, a model has no "
                         "embeddings of whole texts");
  }
  if (pools) config.normalize = normalizes;
  SLUICE_RETURN_IF_ERROR(ReadLimits(directory, &config));
  return config;
}

}  // namespace sluice
