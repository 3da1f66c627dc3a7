#include "runtime/model/positions.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "runtime/model/json_file.h"

namespace sluice {
namespace {

using nlohmann::json;

// The type of rotary scaling in `parameters`, or in the objects by layer type
// in it, which agree where they are in use; "" if there is none.
std::string ScalingType(const json& parameters) {
  if (!parameters.is_object()) return "";
  for (const char* key : {"rope_type", "type"}) {
    const auto it = parameters.find(key);
    if (it != parameters.end() && it->is_string())
      return it->get<std::string>();
  }
  for (const json& nested : parameters) {
    if (std::string type = ScalingType(nested); !type.empty()) return type;
  }
  return "";
}

}  // namespace

std::string DescribePositions(const DecoderSpec& spec,
                              absl::string_view config_json) {
  const std::string takes =
      absl::StrCat("takes ", spec.max_positions, " positions: ");
  if (spec.positions == PositionKind::kLearned) {
    return takes + "its table of positions has no more";
  }
  std::string type;
  if (const auto config = ParseJsonObject(config_json); config.ok()) {
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      const auto it = config->find(key);
      if (it == config->end()) continue;
      if (std::string own = ScalingType(*it); !own.empty()) type = own;
    }
  }
  if (type == "dynamic") {
    return takes +
           "beyond max_position_embeddings, \"dynamic\" scaling gives answers "
           "that depend on how a prompt is cut into steps; \"yarn\" and "
           "\"linear\" in config.json go beyond";
  }
  if (type == "yarn" || type == "linear") {
    return absl::StrCat(takes, "as far as the \"", type,
                        "\" scaling of config.json stretches them");
  }
  return takes +
         "max_position_embeddings of config.json; scaling of type \"yarn\" or "
         "\"linear\" there would stretch them";
}

}  // namespace sluice
