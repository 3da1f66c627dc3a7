#include "runtime/model/codes_json.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "runtime/model/code_format.h"

namespace sluice {
namespace {

using json = nlohmann::json;

constexpr char kKey[] = "kept_codes";

constexpr const CodeFormat* LayerCodes::*kMembers[] = {
    &LayerCodes::q,          &LayerCodes::k,           &LayerCodes::v,
    &LayerCodes::out,        &LayerCodes::gate,        &LayerCodes::up,
    &LayerCodes::down,       &LayerCodes::expert_gate, &LayerCodes::expert_up,
    &LayerCodes::expert_down};
static_assert(sizeof(LayerCodes) == std::size(kMembers) * sizeof(void*));

std::string NameOf(const CodeFormat* format) {
  return std::string(format == nullptr ? "" : format->name);
}

absl::Status SetFormat(const json& name, const CodeFormat** format) {
  if (name.is_string() && name.get_ref<const std::string&>().empty()) {
    *format = nullptr;
    return absl::OkStatus();
  }
  *format = name.is_string()
                ? FindCodeFormat(name.get_ref<const std::string&>())
                : nullptr;
  if (*format == nullptr) {
    return InvalidArgument(
        kKey, " has the format ",
        name.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 60),
        ", which is not known; take the same version of Sluice everywhere");
  }
  return absl::OkStatus();
}

}  // namespace

void AddCodes(const DecoderSpec& spec, std::string* config) {
  bool any = spec.head_codes != nullptr || spec.embedding_codes != nullptr;
  json layers = json::array();
  for (int i = 0; i < spec.num_layers; ++i) {
    const LayerCodes codes = spec.layer(i).codes;
    any |= codes != LayerCodes();
    json& names = layers.emplace_back(json::array());
    for (const auto member : kMembers) names.push_back(NameOf(codes.*member));
  }
  json object = json::parse(*config);
  if (object.erase(kKey) == 0 && !any) return;
  if (any) {
    object[kKey] = {{"layers", std::move(layers)},
                    {"head", NameOf(spec.head_codes)},
                    {"embedding", NameOf(spec.embedding_codes)}};
  }
  *config = object.dump();
}

absl::Status SetCodes(const nlohmann::json& config, DecoderSpec* spec) {
  const auto found = config.find(kKey);
  if (found == config.end()) return absl::OkStatus();
  const auto layers = found->is_object() ? found->find("layers") : found->end();
  if (!found->is_object() || !found->contains("head") ||
      !found->contains("embedding") || layers == found->end() ||
      !layers->is_array() ||
      layers->size() != static_cast<size_t>(spec->num_layers)) {
    return InvalidArgument(kKey, " has no head, embedding and list of ",
                           spec->num_layers, " layers");
  }
  SLUICE_RETURN_IF_ERROR(SetFormat((*found)["head"], &spec->head_codes));
  SLUICE_RETURN_IF_ERROR(
      SetFormat((*found)["embedding"], &spec->embedding_codes));
  if (spec->embedding_codes != nullptr &&
      spec->embedding_codes->scaled != nullptr) {
    return InvalidArgument(kKey, ".embedding is ", spec->embedding_codes->name,
                           ", in which no rows are looked up");
  }
  spec->layers.resize(spec->num_layers);
  for (int i = 0; i < spec->num_layers; ++i) {
    const json& names = (*layers)[i];
    if (!names.is_array() || names.size() != std::size(kMembers)) {
      return InvalidArgument(kKey, ".layers has no list of ",
                             std::size(kMembers), " formats for layer ", i);
    }
    for (size_t j = 0; j < std::size(kMembers); ++j) {
      SLUICE_RETURN_IF_ERROR(
          SetFormat(names[j], &(spec->layers[i].codes.*kMembers[j])));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
