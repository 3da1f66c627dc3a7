#include "server/cli/plan/models_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/flags/help_format.h"
#include "common/text/bytes_text.h"
#include "common/text/text.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

constexpr size_t kColumns = 80;
constexpr size_t kReasonColumn = 4;
constexpr size_t kFactColumn = 13;
constexpr size_t kCommitDigits = 12;
constexpr size_t kLeastName = 20;
constexpr size_t kMostName = 36;  // longer ones push their row to the right

// "1.24 B": 1.24 billion.
std::string ParametersText(const std::optional<int64_t>& parameters) {
  if (!parameters) return "?";
  const auto count = static_cast<double>(*parameters);
  for (const auto& [unit, name] : {std::pair(1e12, "T"), std::pair(1e9, "B"),
                                   std::pair(1e6, "M"), std::pair(1e3, "K")}) {
    if (count >= unit) return absl::StrFormat("%.3g %s", count / unit, name);
  }
  return absl::StrCat(*parameters);
}

// The revision that --model takes behind the @; "" for main's.
std::string RevisionText(const LocalModel& model) {
  if (model.revisions.empty()) return model.commit.substr(0, kCommitDigits);
  return absl::StrJoin(model.revisions, ",");
}

// Text below a row, which begins at `indent`.
std::string Lines(const std::string& text, size_t indent) {
  return absl::StrCat(std::string(indent, ' '),
                      Wrap(EscapeForTerminal(text), indent, indent, kColumns),
                      "\n");
}

std::string FactLine(const std::string& name, const std::string& value) {
  return absl::StrCat(
      absl::StrFormat("%-*s", static_cast<int>(kFactColumn), name),
      Wrap(EscapeForTerminal(value), kFactColumn, kFactColumn, kColumns), "\n");
}

std::string ModelRow(size_t width, const std::string& name,
                     const std::string& revision, const std::string& type,
                     const std::string& parameters, const std::string& bytes,
                     const std::string& runs) {
  return absl::StrFormat("%-*s %-12s %-10s %7s %9s  %s\n",
                         static_cast<int>(width), EscapeForTerminal(name),
                         EscapeForTerminal(revision), EscapeForTerminal(type),
                         parameters, bytes, runs);
}

ordered_json ModelObject(const LocalModel& model) {
  ordered_json json = {{"name", model.name},
                       {"commit", model.commit},
                       {"revisions", model.revisions},
                       {"dir", model.dir},
                       {"model_type", model.model_type},
                       {"parameters", nullptr},
                       {"bytes", model.bytes},
                       {"weight_bytes", model.weight_bytes},
                       {"dtype", model.dtype},
                       {"quantization", model.quantization},
                       {"layers", model.layers},
                       {"positions", model.positions},
                       {"vocabulary", model.vocabulary},
                       {"runs", model.runs()},
                       {"why_not", model.why_not},
                       {"remarks", model.remarks},
                       {"tokens_per_second", nullptr}};
  if (model.parameters) json["parameters"] = *model.parameters;
  if (model.speed) {
    json["tokens_per_second"] = model.speed->tokens_per_second;
  } else if (!model.no_speed.empty()) {
    json["no_speed"] = model.no_speed;
  }
  return json;
}

std::string DumpSafely(const ordered_json& json) {
  return EscapeJsonForTerminal(
      json.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
}

}  // namespace

std::string ModelsTable(const LocalModels& models) {
  std::string text =
      FactLine("These run:", absl::StrJoin(models.model_types, ", "));
  if (models.models.empty()) {
    const std::string where =
        models.cache.empty() ? "HOME is not set" : models.cache;
    return text +
           Lines(absl::StrCat("No model is in the Hugging Face cache (", where,
                              "); `hf download org/name` gets one"),
                 0);
  }
  text += Lines(absl::StrCat("In ", models.cache, ":"), 0);
  size_t width = kLeastName;
  for (const LocalModel& model : models.models) {
    width = std::max(width, std::min(model.name.size(), kMostName));
  }
  absl::StrAppend(&text, "\n",
                  ModelRow(width, "MODEL", "REVISION", "TYPE", "PARAMS",
                           "ON DISK", "RUNS"));
  for (const LocalModel& model : models.models) {
    text += ModelRow(width, model.name, RevisionText(model),
                     model.model_type.empty() ? "?" : model.model_type,
                     ParametersText(model.parameters),
                     BytesText(static_cast<double>(model.bytes)),
                     model.runs() ? "yes" : "no");
    if (!model.runs()) text += Lines(model.why_not, kReasonColumn);
  }
  return text;
}

std::string ModelText(const LocalModel& model) {
  std::string text = FactLine("model", model.name);
  if (!model.commit.empty()) {
    text += FactLine("commit", model.commit);
    if (!model.revisions.empty()) {
      text += FactLine("revisions", absl::StrJoin(model.revisions, ", "));
    }
  }
  text += FactLine("path", model.dir);
  text += FactLine("type", model.model_type.empty() ? "?" : model.model_type);
  text += FactLine("parameters", ParametersText(model.parameters));
  text += FactLine("on disk", BytesText(static_cast<double>(model.bytes)));
  if (!model.weight_bytes.empty()) {
    text += FactLine(
        "weights",
        absl::StrJoin(model.weight_bytes, ", ",
                      [](std::string* out, const auto& of_type) {
                        absl::StrAppend(
                            out, of_type.first, " ",
                            BytesText(static_cast<double>(of_type.second)));
                      }));
  }
  if (model.layers > 0) {
    text += FactLine("numbers", model.dtype);
    if (!model.quantization.empty()) {
      text += FactLine("quantized", model.quantization);
    }
    text += FactLine("layers", absl::StrCat(model.layers));
    text += FactLine("positions", absl::StrCat(model.positions));
    text += FactLine("vocabulary", absl::StrCat(model.vocabulary));
  }
  text += FactLine("runs",
                   model.runs() ? "yes" : absl::StrCat("no: ", model.why_not));
  for (const std::string& remark : model.remarks) text += FactLine("", remark);
  if (model.speed) {
    text += FactLine(
        "speed",
        absl::StrFormat("about %.3g generated tokens/s here, for %d requests "
                        "of %d tokens and %d generated",
                        model.speed->tokens_per_second, model.speed->requests,
                        model.speed->prompt, model.speed->generated));
  } else if (!model.no_speed.empty()) {
    text += FactLine("speed", absl::StrCat("unknown: ", model.no_speed));
  }
  return text;
}

std::string ModelsJson(const LocalModels& models) {
  ordered_json json = {{"model_types", models.model_types},
                       {"cache", models.cache},
                       {"models", ordered_json::array()}};
  for (const LocalModel& model : models.models) {
    json["models"].push_back(ModelObject(model));
  }
  return DumpSafely(json);
}

std::string ModelJson(const LocalModel& model) {
  return DumpSafely(ModelObject(model));
}

}  // namespace sluice
