#include "common/policy.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 16;

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

struct NumberKey {
  absl::string_view name;
  int32_t Policy::*member;
  int32_t min;
  int32_t max = INT32_MAX;
};
constexpr NumberKey kNumberKeys[] = {
    {"gbs", &Policy::gbs, 1},
    {"num-microbatches", &Policy::num_microbatches, 1},
    {"max-step-tokens", &Policy::max_step_tokens, 1},
    {"threads", &Policy::compute_threads, 0},
    {"tensor-parallel", &Policy::ranks, 0, kMaxRanks},
    {"slice-context", &Policy::slice_context, 0, kMaxSliceContext}};
struct SwitchKey {
  absl::string_view name;
  bool Policy::*member;
};
constexpr SwitchKey kSwitchKeys[] = {{"overlap", &Policy::overlap},
                                     {"packing", &Policy::packing},
                                     {"slicing", &Policy::slicing}};

// A key of the nine fractions: a kind of data and its shares of the tiers.
struct KindKey {
  absl::string_view name;
  TierFractions Policy::*fractions;
  bool Policy::*automatic;
};
constexpr KindKey kKindKeys[] = {
    {"w", &Policy::weights, &Policy::automatic_weights},
    {"c", &Policy::kv_cache, &Policy::automatic_kv_cache},
    {"h", &Policy::activations, &Policy::automatic_activations}};
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

absl::Status SetSparsity(absl::string_view key, absl::string_view value,
                         float* out) {
  float share = 0;
  if (!absl::SimpleAtof(value, &share) || !(share > 0 && share <= 1)) {
    return Invalid(key, value, "a share above 0, up to 1");
  }
  *out = share;
  return absl::OkStatus();
}

absl::Status Set(absl::string_view key, absl::string_view value,
                 Policy* policy) {
  for (const NumberKey& number : kNumberKeys) {
    if (key != number.name) continue;
    return SetNumber(key, value, number.min, number.max,
                     &(policy->*number.member));
  }
  for (const KindKey& kind : kKindKeys) {
    if (key.substr(0, key.find('.')) != kind.name) continue;
    return SetKind(key, value, kind, policy);
  }
  if (key == "compress-weights") {
    return SetFormat(key, value, &policy->compress_weights);
  }
  if (key == "compress-kv") return SetFormat(key, value, &policy->compress_kv);
  if (key == "attention-site") {
    return SetWord(key, value, {"host", AttentionSite::kHost},
                   {"device", AttentionSite::kDevice}, &policy->attention_site);
  }
  if (key == "sparsity") return SetSparsity(key, value, &policy->sparsity);
  if (key == "schedule") {
    return SetWord(key, value, {"zigzag", Schedule::kZigZag},
                   {"row", Schedule::kRowByRow}, &policy->schedule);
  }
  for (const SwitchKey& of : kSwitchKeys) {
    if (key != of.name) continue;
    return SetWord(key, value, {"on", true}, {"off", false},
                   &(policy->*of.member));
  }
  if (key == "link-dtype") {
    return SetWord(key, value, {"float32", DType::kFloat32},
                   {"bfloat16", DType::kBFloat16}, &policy->link_dtype);
  }
  return InvalidArgument(
      "policy: unknown key ", key,
      "; known are gbs, num-microbatches, max-step-tokens, threads, w, c, h, "
      "compress-weights, compress-kv, attention-site, sparsity, schedule, "
      "overlap, packing, slicing, slice-context and link-dtype");
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (in.bad() || (!in.eof() && text.size() <= kMaxFileBytes)) {
    return InvalidArgument(
        "policy: can't read the file '", path, "'",
        errno != 0 ? absl::StrCat(": ", std::strerror(errno)) : "",
        " (--policy @FILE names one of key=value lines, or a plan)");
  }
  if (text.size() > kMaxFileBytes) {
    return InvalidArgument("policy: the file '", path, "' has more than ",
                           kMaxFileBytes, " bytes");
  }
  return text;
}

std::string FractionsText(const TierFractions& f) {
  return absl::StrFormat("%.9g/%.9g/%.9g", 100 * f.device, 100 * f.host,
                         100 * f.disk);
}

}  // namespace

absl::Status UpdatePolicy(absl::string_view text, Policy* policy) {
  std::string contents;
  if (absl::ConsumePrefix(&text, "@")) {
    SLUICE_ASSIGN_OR_RETURN(contents, ReadFile(std::string(text)));
    text = contents;
  }
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = line.substr(0, line.find('#'));
    for (const absl::string_view pair :
         absl::StrSplit(line, absl::ByAnyChar(", \t\r"), absl::SkipEmpty())) {
      const size_t equals = pair.find('=');
      if (equals == absl::string_view::npos || equals == 0) {
        return InvalidArgument("policy: ", pair, ": expected key=value");
      }
      SLUICE_RETURN_IF_ERROR(
          Set(pair.substr(0, equals), pair.substr(equals + 1), policy));
    }
  }
  for (const KindKey& kind : kKindKeys) {
    const TierFractions& f = policy->*kind.fractions;
    if (std::abs(f.device + f.host + f.disk - 1) > 1e-6) {
      return InvalidArgument("policy: the shares of ", kind.name, ", ",
                             FractionsText(f),
                             " per cent, don't add up to 100");
    }
  }
  return absl::OkStatus();
}

std::string PolicyText(const Policy& p) {
  return absl::StrCat(
      "gbs=", p.gbs, " num-microbatches=", p.num_microbatches,
      " max-step-tokens=", p.max_step_tokens,
      " w=", p.automatic_weights ? "auto" : FractionsText(p.weights),
      " c=", p.automatic_kv_cache ? "auto" : FractionsText(p.kv_cache),
      " h=", p.automatic_activations ? "auto" : FractionsText(p.activations),
      " compress-weights=", WeightFormatName(p.compress_weights),
      " compress-kv=", WeightFormatName(p.compress_kv), " attention-site=",
      p.attention_site == AttentionSite::kHost ? "host" : "device",
      " sparsity=", p.sparsity,
      " schedule=", p.schedule == Schedule::kZigZag ? "zigzag" : "row",
      " overlap=", p.overlap ? "on" : "off",
      " packing=", p.packing ? "on" : "off", " threads=", p.compute_threads,
      p.ranks == 0 ? "" : absl::StrCat(" tensor-parallel=", p.ranks),
      " slicing=", p.slicing ? "on" : "off", " slice-context=", p.slice_context,
      " link-dtype=", p.link_dtype == DType::kFloat32 ? "float32" : "bfloat16");
}

KvFormat KvFormatOf(const Policy& policy) {
  if (policy.compress_kv == WeightFormat::kInt8) return KvFormat::kInt8;
  if (policy.compress_kv == WeightFormat::kInt4) return KvFormat::kInt4;
  return UnquantizedKvFormat(policy.dtype);
}

}  // namespace sluice
