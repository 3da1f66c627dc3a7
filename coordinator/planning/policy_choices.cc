#include "coordinator/planning/policy_choices.h"

#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "coordinator/planning/plan_json.h"

namespace sluice {
namespace {

constexpr size_t kMaxPlanBytes = size_t{16} << 20;

absl::Status UpdateAll(const std::vector<std::string>& texts, Policy* policy) {
  for (const std::string& text : texts) {
    SLUICE_RETURN_IF_ERROR(UpdatePolicy(text, policy));
  }
  return absl::OkStatus();
}

// Two policies that differ in every field that a text may name: a field in
// which they agree after the texts was set by them.
std::pair<Policy, Policy> Opposites() {
  Policy a;
  Policy b;
  a.gbs = 1, b.gbs = 2;
  a.num_microbatches = 1, b.num_microbatches = 2;
  a.max_step_tokens = 1, b.max_step_tokens = 2;
  a.compute_threads = 1, b.compute_threads = 2;
  a.ranks = 1, b.ranks = 2;
  a.compress_weights = WeightFormat::kFull;
  b.compress_weights = WeightFormat::kInt8;
  a.compress_kv = WeightFormat::kFull;
  b.compress_kv = WeightFormat::kInt8;
  a.slicing = true, b.slicing = false;
  a.slice_context = 1, b.slice_context = 2;
  a.attention_site = AttentionSite::kHost;
  b.attention_site = AttentionSite::kDevice;
  return {a, b};
}

}  // namespace

absl::StatusOr<PolicyChoices> ChoicesLeftBy(
    const std::vector<std::string>& texts) {
  auto [a, b] = Opposites();
  SLUICE_RETURN_IF_ERROR(UpdateAll(texts, &a));
  SLUICE_RETURN_IF_ERROR(UpdateAll(texts, &b));
  if (!a.automatic_weights || !a.automatic_kv_cache ||
      !a.automatic_activations) {
    return absl::InvalidArgumentError(
        "policy: shares of tiers (w, c, h) are what a plan decides; leave them "
        "out, or don't plan");
  }
  PolicyChoices choices;
  if (a.gbs == b.gbs) choices.gbs = {a.gbs};
  if (a.num_microbatches == b.num_microbatches) {
    choices.num_microbatches = {a.num_microbatches};
  }
  if (a.max_step_tokens == b.max_step_tokens) {
    choices.max_step_tokens = {a.max_step_tokens};
  }
  if (a.compute_threads == b.compute_threads && a.compute_threads > 0) {
    choices.threads = {a.compute_threads};
  }
  if (a.ranks == b.ranks && a.ranks > 0) choices.ranks = {a.ranks};
  if (a.slicing == b.slicing) choices.slicing = a.slicing;
  if (a.slice_context == b.slice_context) {
    choices.slice_context = a.slice_context;
  }
  if (a.attention_site == b.attention_site) {
    choices.attention_sites = {a.attention_site};
  }
  if (a.compress_weights == b.compress_weights) {
    choices.weight_formats = {a.compress_weights};
  }
  if (a.compress_kv == b.compress_kv) choices.kv_formats = {a.compress_kv};
  choices.link_dtype = a.link_dtype;
  return choices;
}

bool NamesFractions(const std::vector<std::string>& texts) {
  Policy policy;
  return UpdateAll(texts, &policy).ok() &&
         !(policy.automatic_weights && policy.automatic_kv_cache &&
           policy.automatic_activations);
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
