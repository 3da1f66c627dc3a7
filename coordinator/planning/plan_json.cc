#include "coordinator/planning/plan_json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr size_t kMaxStages = 4096;

std::string Name(int resource) {
  const absl::string_view name = ResourceName(static_cast<Resource>(resource));
  return std::string(name.data(), name.size());
}

// Writes the values of resources that are not 0.
template <typename Array>
void AddByResource(const Array& values, Json* out) {
  for (int r = 0; r < kNumResources; ++r) {
    if (values[r] != 0) (*out)[Name(r)] = values[r];
  }
}

absl::Status Bad(absl::string_view where, absl::string_view expected) {
  return InvalidArgument("plan: ", where, ": expected ", expected);
}

// Reads one object key by key; keys that were not asked for are unknown.
class Reader {
 public:
  Reader(const Json& json, std::string where)
      : json_(json), where_(std::move(where)) {}

  std::string At(absl::string_view key) const {
    return where_.empty() ? std::string(key.data(), key.size())
                          : absl::StrCat(where_, ".", key);
  }
  const Json* Find(std::string key) {
    const auto it = json_.find(key);
    seen_.push_back(std::move(key));
    return it == json_.end() ? nullptr : &*it;
  }
  absl::Status Number(const std::string& key, double* out) {
    const Json* value = Find(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_number()) return Bad(At(key), "a number");
    *out = value->get<double>();
    if (!std::isfinite(*out) || *out < 0) {
      return Bad(At(key), "a finite number that is not negative");
    }
    return absl::OkStatus();
  }
  absl::Status Text(const std::string& key, std::string* out) {
    const Json* value = Find(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_string()) return Bad(At(key), "a text");
    *out = value->get<std::string>();
    return absl::OkStatus();
  }
  absl::Status Int(const std::string& key, int64_t min, int64_t max,
                   int64_t* out) {
    const Json* value = Find(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_number_integer() || value->get<int64_t>() < min ||
        value->get<int64_t>() > max) {
      return Bad(At(key),
                 absl::StrCat("a whole number from ", min, " to ", max));
    }
    *out = value->get<int64_t>();
    return absl::OkStatus();
  }
  template <typename Array>
  absl::Status ByResource(Array* values) {
    for (int r = 0; r < kNumResources; ++r) {
      SLUICE_RETURN_IF_ERROR(Number(Name(r), &(*values)[r]));
    }
    return absl::OkStatus();
  }
  absl::Status Finish() const {
    for (const auto& [key, value] : json_.items()) {
      if (std::find(seen_.begin(), seen_.end(), key) == seen_.end()) {
        return InvalidArgument("plan: unknown key ", At(key));
      }
    }
    return absl::OkStatus();
  }

 private:
  const Json& json_;
  const std::string where_;
  std::vector<std::string> seen_;
};

absl::StatusOr<StagePlan> ParseStage(const Json& json,
                                     const std::string& where) {
  if (!json.is_object()) return Bad(where, "an object");
  Reader in(json, where);
  StagePlan stage;
  SLUICE_RETURN_IF_ERROR(in.Text("worker", &stage.worker));
  int64_t machine = 0;
  SLUICE_RETURN_IF_ERROR(in.Int("machine", 0, 1 << 20, &machine));
  stage.machine = static_cast<int>(machine);
  const Json* layers = in.Find("layers");
  if (layers == nullptr || !layers->is_array() || layers->size() != 2 ||
      !(*layers)[0].is_number_unsigned() ||
      !(*layers)[1].is_number_unsigned() ||
      (*layers)[1].get<uint64_t>() > uint64_t{1} << 20 ||
      (*layers)[0].get<uint64_t>() >= (*layers)[1].get<uint64_t>()) {
    return Bad(in.At("layers"), "[first, one after the last]");
  }
  stage.layers = {(*layers)[0].get<int>(), (*layers)[1].get<int>()};
  std::string policy;
  SLUICE_RETURN_IF_ERROR(in.Text("policy", &policy));
  if (policy.empty() || absl::StrContains(policy, "@")) {
    return Bad(in.At("policy"), "key=value pairs");
  }
  if (absl::Status status = UpdatePolicy(policy, &stage.policy); !status.ok()) {
    return Annotate(status, in.At("policy"));
  }
  if (const Json* predicted = in.Find("predicted"); predicted != nullptr) {
    if (!predicted->is_object()) return Bad(in.At("predicted"), "an object");
    Reader figures(*predicted, in.At("predicted"));
    SLUICE_RETURN_IF_ERROR(figures.Number("seconds", &stage.seconds));
    SLUICE_RETURN_IF_ERROR(figures.ByResource(&stage.busy));
    SLUICE_RETURN_IF_ERROR(figures.Finish());
  }
  if (const Json* all = in.Find("capacities"); all != nullptr) {
    if (!all->is_array()) return Bad(in.At("capacities"), "a list");
    for (size_t i = 0; i < all->size(); ++i) {
      const std::string at = absl::StrCat(in.At("capacities"), "[", i, "]");
      if (!(*all)[i].is_object()) return Bad(at, "an object");
      Reader row((*all)[i], at);
      CapacityUse use;
      SLUICE_RETURN_IF_ERROR(row.Text("what", &use.what));
      SLUICE_RETURN_IF_ERROR(row.Number("bytes", &use.bytes));
      SLUICE_RETURN_IF_ERROR(row.Number("limit", &use.limit));
      SLUICE_RETURN_IF_ERROR(row.Finish());
      stage.capacities.push_back(std::move(use));
    }
  }
  SLUICE_RETURN_IF_ERROR(in.Finish());
  return stage;
}

absl::Status ParsePredicted(const Json& json, Plan* plan) {
  if (!json.is_object()) return Bad("predicted", "an object");
  Reader in(json, "predicted");
  SLUICE_RETURN_IF_ERROR(in.Number("seconds", &plan->seconds));
  SLUICE_RETURN_IF_ERROR(
      in.Number("tokens_per_second", &plan->tokens_per_second));
  SLUICE_RETURN_IF_ERROR(in.Number("steps", &plan->steps));
  SLUICE_RETURN_IF_ERROR(in.Number("latency_seconds", &plan->latency_seconds));
  std::string binding;
  SLUICE_RETURN_IF_ERROR(in.Text("binding", &binding));
  for (int r = 0; r < kNumResources; ++r) {
    if (Name(r) == binding) plan->binding_resource = static_cast<Resource>(r);
  }
  if (!binding.empty() &&
      Name(static_cast<int>(plan->binding_resource)) != binding) {
    return Bad("predicted.binding", "a resource, such as \"disk read\"");
  }
  int64_t stage = 0;
  SLUICE_RETURN_IF_ERROR(in.Int(
      "stage", 0, static_cast<int64_t>(plan->stages.size()) - 1, &stage));
  plan->binding_stage = static_cast<int>(stage);
  if (const Json* bytes = in.Find("bytes_per_token"); bytes != nullptr) {
    if (!bytes->is_object())
      return Bad("predicted.bytes_per_token", "an object");
    Reader by(*bytes, "predicted.bytes_per_token");
    SLUICE_RETURN_IF_ERROR(by.ByResource(&plan->bytes_per_token));
    SLUICE_RETURN_IF_ERROR(by.Finish());
  }
  return in.Finish();
}

Json JsonOf(const Plan& plan) {
  Json stages = Json::array();
  for (const StagePlan& stage : plan.stages) {
    Json predicted = {{"seconds", stage.seconds}};
    AddByResource(stage.busy, &predicted);
    Json capacities = Json::array();
    for (const CapacityUse& use : stage.capacities) {
      capacities.push_back(
          {{"what", use.what}, {"bytes", use.bytes}, {"limit", use.limit}});
    }
    stages.push_back({{"worker", stage.worker},
                      {"machine", stage.machine},
                      {"layers", {stage.layers.begin, stage.layers.end}},
                      {"policy", PolicyText(stage.policy)},
                      {"predicted", std::move(predicted)},
                      {"capacities", std::move(capacities)}});
  }
  Json bytes = Json::object();
  AddByResource(plan.bytes_per_token, &bytes);
  Json json = {{"version", kVersion},
               {"num_blocks", plan.block.num_blocks},
               {"stages", std::move(stages)},
               {"predicted",
                {{"seconds", plan.seconds},
                 {"tokens_per_second", plan.tokens_per_second},
                 {"steps", plan.steps},
                 {"latency_seconds", plan.latency_seconds},
                 {"binding", Name(static_cast<int>(plan.binding_resource))},
                 {"stage", plan.binding_stage},
                 {"bytes_per_token", std::move(bytes)}}}};
  if (plan.kv_positions > 0) json["kv_positions"] = plan.kv_positions;
  if (!plan.tensor_parallel.empty()) {
    json["tensor_parallel"] = plan.tensor_parallel;
  }
  if (!plan.slicing.empty()) json["slicing"] = plan.slicing;
  return json;
}

absl::StatusOr<Plan> ParseOne(const Json& json) {
  if (!json.is_object()) {
    return Bad("the file", json.is_discarded() ? "JSON, which this is not"
                                               : "a JSON object");
  }
  if (json.contains("machine") && json.contains("fingerprint")) {
    return absl::InvalidArgumentError(
        "this is the profile of a machine, for --profile; a plan is what "
        "`sluice plan --output FILE` writes");
  }
  Reader in(json, "");
  int64_t version = 0;
  SLUICE_RETURN_IF_ERROR(in.Int("version", 0, INT32_MAX, &version));
  if (version != kVersion) {
    return Bad("version", absl::StrCat(kVersion, ", for this program"));
  }
  Plan plan;
  int64_t blocks = 0;
  SLUICE_RETURN_IF_ERROR(in.Int("num_blocks", 1, 1024, &blocks));
  if (blocks == 0) return Bad("num_blocks", "a whole number from 1 to 1024");
  const Json* stages = in.Find("stages");
  if (stages == nullptr || !stages->is_array() || stages->empty() ||
      stages->size() > kMaxStages) {
    return Bad("stages", "a list of at least one stage");
  }
  for (size_t s = 0; s < stages->size(); ++s) {
    const std::string where = absl::StrCat("stages[", s, "]");
    SLUICE_ASSIGN_OR_RETURN(StagePlan stage, ParseStage((*stages)[s], where));
    const int expected = s == 0 ? 0 : plan.stages.back().layers.end;
    if (stage.layers.begin != expected) {
      return Bad(absl::StrCat(where, ".layers"),
                 absl::StrCat("to begin with layer ", expected));
    }
    if (s > 0) {
      const Policy& first = plan.stages.front().policy;
      if (stage.policy.gbs != first.gbs ||
          stage.policy.num_microbatches != first.num_microbatches ||
          stage.policy.max_step_tokens != first.max_step_tokens ||
          stage.policy.slicing != first.slicing ||
          stage.policy.slice_context != first.slice_context) {
        return Bad(absl::StrCat(where, ".policy"),
                   "the gbs, num-microbatches, max-step-tokens, slicing and "
                   "slice-context of the first stage");
      }
    }
    plan.stages.push_back(std::move(stage));
  }
  const Policy& first = plan.stages.front().policy;
  plan.block.gbs = first.gbs;
  plan.block.num_microbatches = first.num_microbatches;
  plan.block.max_step_tokens = first.max_step_tokens;
  plan.block.num_blocks = static_cast<int32_t>(blocks);
  plan.block.steps_in_flight =
      StepsInFlight(first.slicing, static_cast<int>(plan.stages.size()));
  plan.block.slice_context = first.slice_context;
  SLUICE_RETURN_IF_ERROR(
      in.Int("kv_positions", 0, INT64_MAX, &plan.kv_positions));
  SLUICE_RETURN_IF_ERROR(in.Text("tensor_parallel", &plan.tensor_parallel));
  SLUICE_RETURN_IF_ERROR(in.Text("slicing", &plan.slicing));
  if (const Json* predicted = in.Find("predicted"); predicted != nullptr) {
    SLUICE_RETURN_IF_ERROR(ParsePredicted(*predicted, &plan));
  }
  SLUICE_RETURN_IF_ERROR(in.Finish());
  return plan;
}

Json Parsed(absl::string_view text) {
  return Json::parse(text.begin(), text.end(), nullptr,
                     /*allow_exceptions=*/false);
}

}  // namespace

std::string PlanToJson(const Plan& plan) { return JsonOf(plan).dump(); }

std::string PlansToJson(const std::vector<Plan>& plans) {
  if (plans.size() == 1) return PlanToJson(plans[0]);
  Json pipelines = Json::array();
  for (const Plan& plan : plans) pipelines.push_back(JsonOf(plan));
  return Json{{"version", kVersion}, {"pipelines", std::move(pipelines)}}
      .dump();
}

absl::StatusOr<Plan> ParsePlan(absl::string_view text) {
  return ParseOne(Parsed(text));
}

absl::StatusOr<std::vector<Plan>> ParsePlans(absl::string_view text) {
  const Json json = Parsed(text);
  std::vector<Plan> plans;
  if (!json.is_object() || !json.contains("pipelines")) {
    SLUICE_ASSIGN_OR_RETURN(plans.emplace_back(), ParseOne(json));
    return plans;
  }
  Reader in(json, "");
  int64_t version = 0;
  SLUICE_RETURN_IF_ERROR(in.Int("version", 0, INT32_MAX, &version));
  if (version != kVersion) {
    return Bad("version", absl::StrCat(kVersion, ", for this program"));
  }
  const Json* pipelines = in.Find("pipelines");
  if (!pipelines->is_array() || pipelines->empty() ||
      pipelines->size() > kMaxStages) {
    return Bad("pipelines", "a list of at least one plan");
  }
  for (size_t p = 0; p < pipelines->size(); ++p) {
    absl::StatusOr<Plan> plan = ParseOne((*pipelines)[p]);
    if (!plan.ok()) {
      return Annotate(plan.status(), absl::StrCat("pipelines[", p, "]"));
    }
    plans.push_back(*std::move(plan));
  }
  SLUICE_RETURN_IF_ERROR(in.Finish());
  return plans;
}

bool LooksLikePlan(absl::string_view text) {
  return absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "{");
}

}  // namespace sluice
