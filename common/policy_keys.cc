// Each key is a class with the functions of PolicyKey.

#include "common/policy_keys.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

absl::Status Invalid(absl::string_view key, absl::string_view value,
                     absl::string_view expected) {
  return InvalidArgument("policy: ", key, "=", value, ": expected ", expected);
}

absl::Status SetNumber(absl::string_view key, absl::string_view value,
                       int32_t min, int32_t max, int32_t* out) {
  int32_t number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < min || number > max) {
    return Invalid(key, value,
                   max == INT32_MAX
                       ? absl::StrCat("a number from ", min, " on")
                       : absl::StrCat("a number from ", min, " to ", max));
  }
  *out = number;
  return absl::OkStatus();
}

absl::Status SetFractions(absl::string_view key, absl::string_view value,
                          TierFractions* out) {
  const std::vector<absl::string_view> parts = absl::StrSplit(value, '/');
  double percent[3];
  bool ok = parts.size() == 3;
  for (size_t i = 0; ok && i < 3; ++i) {
    ok = absl::SimpleAtod(parts[i], &percent[i]) && percent[i] >= 0 &&
         percent[i] <= 100;
  }
  if (!ok || std::abs(percent[0] + percent[1] + percent[2] - 100) > 1e-6) {
    return Invalid(key, value,
                   "device/host/disk in per cent, which add up to 100");
  }
  *out = {percent[0] / 100, percent[1] / 100, percent[2] / 100};
  return absl::OkStatus();
}

// A key whose value is one of two words, with their meanings.
template <typename T>
absl::Status SetWord(absl::string_view key, absl::string_view value,
                     const std::pair<const char*, T>& one,
                     const std::pair<const char*, T>& other, T* out) {
  if (value != one.first && value != other.first) {
    return Invalid(key, value, absl::StrCat(one.first, " or ", other.first));
  }
  *out = value == one.first ? one.second : other.second;
  return absl::OkStatus();
}

absl::Status SetFormat(absl::string_view key, absl::string_view value,
                       WeightFormat* out) {
  const auto format = ParseWeightFormat(value);
  if (!format.ok()) return Invalid(key, value, "none, int8 or int4");
  *out = *format;
  return absl::OkStatus();
}

std::string FractionsText(const TierFractions& f) {
  return absl::StrFormat("%.9g/%.9g/%.9g", 100 * f.device, 100 * f.host,
                         100 * f.disk);
}

// A key of the nine fractions: a kind of data and its shares of the tiers.
struct KindKey {
  absl::string_view name;
  TierFractions Policy::*fractions;
  bool Policy::*automatic;
};
constexpr std::pair<absl::string_view, double TierFractions::*> kTierKeys[] = {
    {"device", &TierFractions::device},
    {"host", &TierFractions::host},
    {"disk", &TierFractions::disk}};

// Sets "w" or "w.device", as `kind` says.
absl::Status SetKind(absl::string_view key, absl::string_view value,
                     const KindKey& kind, Policy* policy) {
  TierFractions& fractions = policy->*kind.fractions;
  bool& automatic = policy->*kind.automatic;
  if (key == kind.name) {
    if (value == "auto") {
      fractions = TierFractions();
    } else {
      SLUICE_RETURN_IF_ERROR(SetFractions(key, value, &fractions));
    }
    automatic = value == "auto";
    return absl::OkStatus();
  }
  double share = 0;
  if (!absl::SimpleAtod(value, &share) || !(share >= 0 && share <= 1)) {
    return Invalid(key, value, "a share from 0 to 1");
  }
  for (const auto& [tier, member] : kTierKeys) {
    if (key.substr(kind.name.size() + 1) != tier) continue;
    // The first fraction that is named clears the others of its kind.
    if (automatic) fractions = {0, 0, 0};
    fractions.*member = share;
    automatic = false;
    return absl::OkStatus();
  }
  return InvalidArgument("policy: unknown key ", key);
}

template <auto kMember>
void Copy(const Policy& from, Policy* to) {
  to->*kMember = from.*kMember;
}

template <int32_t Policy::*kMember, int32_t kMin, int32_t kMax = INT32_MAX>
constexpr PolicyKey Number(absl::string_view name, PlanRole plan) {
  return {name,
          "a number",
          plan,
          /*changes_answers=*/false,
          [](absl::string_view key, absl::string_view value, Policy* policy) {
            return SetNumber(key, value, kMin, kMax, &(policy->*kMember));
          },
          [](const Policy& policy) { return absl::StrCat(policy.*kMember); },
          &Copy<kMember>};
}

template <bool Policy::*kMember>
constexpr PolicyKey Switch(absl::string_view name, PlanRole plan) {
  return {name,
          "on or off",
          plan,
          /*changes_answers=*/false,
          [](absl::string_view key, absl::string_view value, Policy* policy) {
            return SetWord(key, value, {"on", true}, {"off", false},
                           &(policy->*kMember));
          },
          [](const Policy& policy) -> std::string {
            return policy.*kMember ? "on" : "off";
          },
          &Copy<kMember>};
}

template <WeightFormat Policy::*kMember>
constexpr PolicyKey Format(absl::string_view name) {
  return {name,
          "none, int8 or int4",
          PlanRole::kChosen,
          /*changes_answers=*/true,
          [](absl::string_view key, absl::string_view value, Policy* policy) {
            return SetFormat(key, value, &(policy->*kMember));
          },
          [](const Policy& policy) {
            return absl::StrCat(WeightFormatName(policy.*kMember));
          },
          &Copy<kMember>};
}

// The words of a key that has two.
template <typename T>
struct Words {
  T Policy::*member;
  std::pair<const char*, T> one, other;
};
constexpr Words<AttentionSite> kSites = {&Policy::attention_site,
                                         {"host", AttentionSite::kHost},
                                         {"device", AttentionSite::kDevice}};
constexpr Words<Schedule> kSchedules = {&Policy::schedule,
                                        {"zigzag", Schedule::kZigZag},
                                        {"row", Schedule::kRowByRow}};
constexpr Words<DType> kLinkDTypes = {&Policy::link_dtype,
                                      {"float32", DType::kFloat32},
                                      {"bfloat16", DType::kBFloat16}};

template <const auto& kWords>
constexpr PolicyKey Word(absl::string_view name, absl::string_view values,
                         PlanRole plan, bool changes_answers) {
  return {name,
          values,
          plan,
          changes_answers,
          [](absl::string_view key, absl::string_view value, Policy* policy) {
            return SetWord(key, value, kWords.one, kWords.other,
                           &(policy->*kWords.member));
          },
          [](const Policy& policy) -> std::string {
            return policy.*kWords.member == kWords.one.second
                       ? kWords.one.first
                       : kWords.other.first;
          },
          [](const Policy& from, Policy* to) {
            to->*kWords.member = from.*kWords.member;
          }};
}

constexpr KindKey kWeights = {"w", &Policy::weights,
                              &Policy::automatic_weights};
constexpr KindKey kKvCache = {"c", &Policy::kv_cache,
                              &Policy::automatic_kv_cache};
constexpr KindKey kActivations = {"h", &Policy::activations,
                                  &Policy::automatic_activations};

template <const KindKey& kKind>
constexpr PolicyKey Shares() {
  return {kKind.name,
          "device/host/disk in per cent, or auto",
          PlanRole::kShares,
          /*changes_answers=*/false,
          [](absl::string_view key, absl::string_view value, Policy* policy) {
            return SetKind(key, value, kKind, policy);
          },
          [](const Policy& policy) {
            return policy.*kKind.automatic
                       ? "auto"
                       : FractionsText(policy.*kKind.fractions);
          },
          [](const Policy& from, Policy* to) {
            to->*kKind.fractions = from.*kKind.fractions;
            to->*kKind.automatic = from.*kKind.automatic;
          }};
}

absl::Status SetSparsity(absl::string_view key, absl::string_view value,
                         Policy* policy) {
  float share = 0;
  if (!absl::SimpleAtof(value, &share) || !(share > 0 && share <= 1)) {
    return Invalid(key, value, "a share above 0, up to 1");
  }
  policy->sparsity = share;
  return absl::OkStatus();
}

constexpr PolicyKey kKeys[] = {
    Number<&Policy::gbs, 1>("gbs", PlanRole::kChosen),
    Number<&Policy::num_microbatches, 1>("num-microbatches", PlanRole::kChosen),
    Number<&Policy::max_step_tokens, 1>("max-step-tokens", PlanRole::kChosen),
    Number<&Policy::compute_threads, 0>("threads", PlanRole::kChosen),
    Number<&Policy::ranks, 0, kMaxRanks>("tensor-parallel", PlanRole::kChosen),
    Shares<kWeights>(),
    Shares<kKvCache>(),
    Shares<kActivations>(),
    Format<&Policy::compress_weights>("compress-weights"),
    Format<&Policy::compress_kv>("compress-kv"),
    Word<kSchedules>("schedule", "zigzag or row", PlanRole::kAside, false),
    Switch<&Policy::overlap>("overlap", PlanRole::kAside),
    Switch<&Policy::packing>("packing", PlanRole::kAside),
    {"sparsity", "above 0, up to 1", PlanRole::kAside, /*changes_answers=*/true,
     &SetSparsity,
     [](const Policy& policy) { return absl::StrCat(policy.sparsity); },
     &Copy<&Policy::sparsity>},
    Word<kSites>("attention-site", "host or device", PlanRole::kChosen, true),
    Switch<&Policy::slicing>("slicing", PlanRole::kChosen),
    Number<&Policy::slice_context, 0, kMaxSliceContext>("slice-context",
                                                        PlanRole::kChosen),
    Word<kLinkDTypes>("link-dtype", "float32 or bfloat16", PlanRole::kChosen,
                      true),
};

std::string JoinTexts(const std::vector<std::string>& texts,
                      absl::string_view separator,
                      absl::string_view last_separator) {
  std::string joined;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) {
      absl::StrAppend(&joined,
                      i + 1 < texts.size() ? separator : last_separator);
    }
    joined += texts[i];
  }
  return joined;
}

}  // namespace

std::span<const PolicyKey> PolicyKeys() { return kKeys; }

const PolicyKey* FindPolicyKey(absl::string_view name) {
  for (const PolicyKey& key : kKeys) {
    if (name == key.name) return &key;
    if (key.plan == PlanRole::kShares &&
        name.substr(0, name.find('.')) == key.name) {
      return &key;
    }
  }
  return nullptr;
}

std::string PolicyKeyNames(absl::FunctionRef<bool(const PolicyKey&)> which,
                           absl::string_view separator,
                           absl::string_view last_separator) {
  std::vector<std::string> names;
  for (const PolicyKey& key : kKeys) {
    if (which(key)) names.emplace_back(key.name.data(), key.name.size());
  }
  return JoinTexts(names, separator, last_separator);
}

std::string PolicyValues(const Policy& policy,
                         absl::FunctionRef<bool(const PolicyKey&)> which,
                         absl::string_view separator,
                         absl::string_view last_separator) {
  std::vector<std::string> values;
  for (const PolicyKey& key : kKeys) {
    if (which(key)) {
      values.push_back(absl::StrCat(key.name, "=", key.get(policy)));
    }
  }
  return JoinTexts(values, separator, last_separator);
}

}  // namespace sluice
