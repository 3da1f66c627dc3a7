#include "coordinator/planning/policy_choices.h"

#include <fstream>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/strip.h"
#include "common/policy_keys.h"
#include "common/status_macros.h"
#include "coordinator/planning/plan_json.h"

namespace sluice {
namespace {

constexpr size_t kMaxPlanBytes = size_t{16} << 20;

// What texts make of the default policy, and the keys that they name.
struct Named {
  Policy policy;
  std::set<absl::string_view> keys;

  bool SharesOfTiers() const {
    return !(policy.automatic_weights && policy.automatic_kv_cache &&
             policy.automatic_activations);
  }
};

absl::StatusOr<Named> ReadAll(const std::vector<std::string>& texts) {
  Named named;
  for (const std::string& text : texts) {
    SLUICE_RETURN_IF_ERROR(UpdatePolicy(text, &named.policy, &named.keys));
  }
  return named;
}

}  // namespace

absl::StatusOr<PolicyChoices> ChoicesLeftBy(
    const std::vector<std::string>& texts) {
  SLUICE_ASSIGN_OR_RETURN(const Named named, ReadAll(texts));
  const Policy& policy = named.policy;
  if (named.SharesOfTiers()) {
    return InvalidArgument(
        "policy: shares of tiers (",
        PolicyKeyNames(
            [](const PolicyKey& key) { return key.plan == PlanRole::kShares; },
            ", ", ", "),
        ") are what a plan decides; leave them out, or don't plan");
  }
  const auto has = [&](absl::string_view key) {
    return named.keys.contains(key);
  };
  PolicyChoices choices;
  if (has("gbs")) choices.gbs = {policy.gbs};
  if (has("num-microbatches")) {
    choices.num_microbatches = {policy.num_microbatches};
  }
  if (has("max-step-tokens"))
    choices.max_step_tokens = {policy.max_step_tokens};
  if (policy.compute_threads > 0) choices.threads = {policy.compute_threads};
  if (policy.ranks > 0) choices.ranks = {policy.ranks};
  if (has("slicing")) choices.slicing = policy.slicing;
  if (has("slice-context")) choices.slice_context = policy.slice_context;
  if (has("attention-site")) choices.attention_sites = {policy.attention_site};
  // Without being named, these are not quantized, and not rounded.
  choices.weight_formats = {policy.compress_weights};
  choices.kv_formats = {policy.compress_kv};
  choices.link_dtype = policy.link_dtype;
  return choices;
}

bool NamesFractions(const std::vector<std::string>& texts) {
  const absl::StatusOr<Named> named = ReadAll(texts);
  return named.ok() && named->SharesOfTiers();
}

absl::StatusOr<std::vector<Plan>> PlansNamedBy(
    const std::vector<std::string>& texts) {
  std::vector<Plan> plans;
  for (const std::string& text : texts) {
    absl::string_view name = text;
    if (!absl::ConsumePrefix(&name, "@")) continue;
    const std::string path(name.data(), name.size());
    std::ifstream in(path, std::ios::binary);
    if (!in) continue;  // UpdatePolicy reports the error
    std::string contents;
    contents.resize(kMaxPlanBytes + 1);
    in.read(contents.data(), static_cast<std::streamsize>(contents.size()));
    contents.resize(static_cast<size_t>(in.gcount()));
    if (!LooksLikePlan(contents)) continue;
    if (contents.size() > kMaxPlanBytes) {
      return InvalidArgument(path, ": a plan of more than ", kMaxPlanBytes,
                             " bytes");
    }
    absl::StatusOr<std::vector<Plan>> parsed = ParsePlans(contents);
    if (!parsed.ok()) return Annotate(parsed.status(), path);
    if (!plans.empty() || texts.size() > 1) {
      return InvalidArgument(
          path, ": a plan is a whole policy; give no other beside it");
    }
    plans = *std::move(parsed);
  }
  return plans;
}

absl::StatusOr<std::optional<Plan>> PlanNamedBy(
    const std::vector<std::string>& texts) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<Plan> plans, PlansNamedBy(texts));
  if (plans.empty()) return std::nullopt;
  if (plans.size() > 1) {
    return InvalidArgument(texts.front().substr(1), ": it has the plans of ",
                           plans.size(), " pipelines; here it must be one");
  }
  return std::move(plans.front());
}

int32_t DefaultGbs(const DecoderSpec& spec) {
  constexpr int64_t kLogitsBytes = int64_t{64} << 20;
  int32_t gbs = 256;
  while (gbs > 64 && int64_t{gbs} * spec.vocab_size * int64_t{sizeof(float)} >
                         kLogitsBytes) {
    gbs /= 2;
  }
  return gbs;
}

}  // namespace sluice
