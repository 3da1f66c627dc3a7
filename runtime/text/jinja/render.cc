#include "runtime/text/jinja/render.h"

#include <nlohmann/json.hpp>

#include "common/status_macros.h"
#include "runtime/text/jinja/interpreter.h"

namespace sluice::jinja {
namespace {

using nlohmann::ordered_json;

absl::StatusOr<Value> FromJson(const ordered_json& json, int depth);

absl::StatusOr<Value> FromObject(const ordered_json& json, int depth) {
  auto dict = std::make_shared<Dict>();
  dict->items.reserve(json.size());
  for (const auto& [key, item] : json.items()) {
    absl::StatusOr<Value> value = FromJson(item, depth);
    if (!value.ok()) return value;
    DictSet(*dict, MakeStr(key), *std::move(value));
  }
  return Value(std::shared_ptr<const Dict>(std::move(dict)));
}

absl::StatusOr<Value> FromJson(const ordered_json& json, int depth) {
  if (json.is_structured() && depth >= Limits().value_depth - 2) {
    return absl::InvalidArgumentError(
        "a template's variables are nested too deeply");
  }
  switch (json.type()) {
    case ordered_json::value_t::boolean:
      return Value(json.get<bool>());
    case ordered_json::value_t::number_integer:
      return Value(static_cast<Int>(json.get<int64_t>()));
    case ordered_json::value_t::number_unsigned:
      return Value(static_cast<Int>(json.get<uint64_t>()));
    case ordered_json::value_t::number_float:
      return Value(json.get<double>());
    case ordered_json::value_t::string:
      return MakeStr(json.get_ref<const std::string&>());
    case ordered_json::value_t::object:
      return FromObject(json, depth + 1);
    case ordered_json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const ordered_json& item : json) {
        absl::StatusOr<Value> value = FromJson(item, depth + 1);
        if (!value.ok()) return value;
        items.push_back(*std::move(value));
      }
      return MakeList(std::move(items));
    }
    default:
      return Value();
  }
}

// Does transformers' _alias_reasoning_fields for one message.
Value AliasReasoning(const Value& message) {
  const Dict* dict = message.AsDict();
  if (dict == nullptr) return message;
  const Value* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* found = DictGet(*dict, name);
    if (found != nullptr && !found->IsNone()) {
      reasoning = found;
      break;
    }
  }
  if (reasoning == nullptr) return message;
  auto aliased = std::make_shared<Dict>();
  DictSet(*aliased, MakeStr("thinking"), *reasoning);
  for (const auto& [key, value] : dict->items) DictSet(*aliased, key, value);
  DictSet(*aliased, MakeStr("reasoning_content"), *reasoning);
  return Value(std::shared_ptr<const Dict>(std::move(aliased)));
}

// Makes the variables of a template from an object, with keys in their order.
// Like transformers before rendering, it adds the variables that are always
// defined (tools, documents: none; add_generation_prompt: false) and gives each
// message that has a reasoning_content, thinking or reasoning the first two of
// these names. kInvalidArgument if it is no object or nested too deeply.
absl::StatusOr<Value> ContextFromJson(const ordered_json& variables) {
  if (!variables.is_object()) {
    return absl::InvalidArgumentError(
        "a template's variables must be an object");
  }
  absl::StatusOr<Value> converted = FromObject(variables, 0);
  if (!converted.ok()) return converted;
  auto context = std::make_shared<Dict>(*converted->AsDict());
  if (const Value* messages = DictGet(*context, "messages");
      messages != nullptr && messages->AsSeq() != nullptr) {
    std::vector<Value> aliased;
    for (const Value& message : messages->AsSeq()->items) {
      aliased.push_back(AliasReasoning(message));
    }
    DictSet(*context, MakeStr("messages"), MakeList(std::move(aliased)));
  }
  for (const char* name : {"tools", "documents"}) {
    if (DictGet(*context, name) == nullptr) {
      DictSet(*context, MakeStr(name), None());
    }
  }
  if (DictGet(*context, "add_generation_prompt") == nullptr) {
    DictSet(*context, MakeStr("add_generation_prompt"), false);
  }
  return Value(std::shared_ptr<const Dict>(std::move(context)));
}

}  // namespace

absl::StatusOr<std::string> RenderTemplate(
    const Template& parsed, const nlohmann::ordered_json& variables,
    absl::CivilSecond now, Limits limits) {
  SLUICE_ASSIGN_OR_RETURN(const Value context, ContextFromJson(variables));
  const uint64_t input_bytes = ExtentOf(context).size;
  limits.work += 64 * input_bytes;
  limits.bytes += 4 * input_bytes;
  return Interpreter(parsed, *context.AsDict(), now, limits).Run();
}

}  // namespace sluice::jinja
