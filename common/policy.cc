#include "common/policy.h"

#include <cmath>
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
  return absl::InvalidArgumentError(
      absl::StrCat("policy: ", key, "=", value, ": expected ", expected));
}

absl::Status SetNumber(absl::string_view key, absl::string_view value,
                       int32_t least, int32_t* out) {
  int32_t number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < least) {
    return Invalid(key, value, absl::StrCat("a number from ", least, " on"));
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

absl::Status Set(absl::string_view key, absl::string_view value,
                 Policy* policy) {
  if (key == "gbs") return SetNumber(key, value, 1, &policy->gbs);
  if (key == "num-microbatches") {
    return SetNumber(key, value, 1, &policy->num_microbatches);
  }
  if (key == "max-step-tokens") {
    return SetNumber(key, value, 1, &policy->max_step_tokens);
  }
  if (key == "threads") {
    return SetNumber(key, value, 0, &policy->compute_threads);
  }
  if (key == "compress-weights" || key == "compress-kv") {
    const auto format = ParseWeightFormat(value);
    if (!format.ok()) return Invalid(key, value, "none, int8 or int4");
    (key == "compress-kv" ? policy->compress_kv : policy->compress_weights) =
        *format;
    return absl::OkStatus();
  }
  if (key == "attention-site") {
    if (value != "host" && value != "device") {
      return Invalid(key, value, "host or device");
    }
    policy->attention_site =
        value == "host" ? AttentionSite::kHost : AttentionSite::kDevice;
    return absl::OkStatus();
  }
  if (key == "sparsity") {
    float share = 0;
    if (!absl::SimpleAtof(value, &share) || !(share > 0 && share <= 1)) {
      return Invalid(key, value, "a share above 0, up to 1");
    }
    policy->sparsity = share;
    return absl::OkStatus();
  }
  if (key == "schedule") {
    if (value != "zigzag" && value != "row") {
      return Invalid(key, value, "zigzag or row");
    }
    policy->schedule =
        value == "zigzag" ? Schedule::kZigZag : Schedule::kRowByRow;
    return absl::OkStatus();
  }
  if (key == "overlap" || key == "packing") {
    if (value != "on" && value != "off") {
      return Invalid(key, value, "on or off");
    }
    (key == "overlap" ? policy->overlap : policy->packing) = value == "on";
    return absl::OkStatus();
  }
  TierFractions* fractions = nullptr;
  bool* automatic = nullptr;
  const absl::string_view kind = key.substr(0, key.find('.'));
  if (kind == "w") {
    fractions = &policy->weights;
    automatic = &policy->automatic_weights;
  } else if (kind == "c") {
    fractions = &policy->kv_cache;
    automatic = &policy->automatic_kv_cache;
  } else if (kind == "h") {
    fractions = &policy->activations;
    automatic = &policy->automatic_activations;
  }
  if (fractions == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "policy: unknown key ", key,
        "; known are gbs, num-microbatches, max-step-tokens, threads, w, c, h, "
        "compress-weights, compress-kv, attention-site, sparsity, schedule, "
        "overlap and packing"));
  }
  if (key == kind) {
    if (value == "auto") {
      *automatic = true;
      *fractions = TierFractions();
      return absl::OkStatus();
    }
    SLUICE_RETURN_IF_ERROR(SetFractions(key, value, fractions));
    *automatic = false;
    return absl::OkStatus();
  }
  double share = 0;
  if (!absl::SimpleAtod(value, &share) || !(share >= 0 && share <= 1)) {
    return Invalid(key, value, "a share from 0 to 1");
  }
  // The first of the nine that is named clears the others of its kind.
  if (*automatic) *fractions = {0, 0, 0};
  const absl::string_view tier = key.substr(kind.size() + 1);
  if (tier == "device") {
    fractions->device = share;
  } else if (tier == "host") {
    fractions->host = share;
  } else if (tier == "disk") {
    fractions->disk = share;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("policy: unknown key ", key));
  }
  *automatic = false;
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (in.bad() || !in.eof()) {
    return absl::InvalidArgumentError(absl::StrCat("policy: can't read ", path,
                                                   ", or it has more than ",
                                                   kMaxFileBytes, " bytes"));
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
        return absl::InvalidArgumentError(
            absl::StrCat("policy: ", pair, ": expected key=value"));
      }
      SLUICE_RETURN_IF_ERROR(
          Set(pair.substr(0, equals), pair.substr(equals + 1), policy));
    }
  }
  const std::pair<const char*, const TierFractions*> kinds[] = {
      {"w", &policy->weights},
      {"c", &policy->kv_cache},
      {"h", &policy->activations}};
  for (const auto& [key, f] : kinds) {
    if (std::abs(f->device + f->host + f->disk - 1) > 1e-6) {
      return absl::InvalidArgumentError(
          absl::StrCat("policy: the shares of ", key, ", ", FractionsText(*f),
                       " per cent, don't add up to 100"));
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
      " packing=", p.packing ? "on" : "off", " threads=", p.compute_threads);
}

KvFormat KvFormatOf(const Policy& policy) {
  switch (policy.compress_kv) {
    case WeightFormat::kInt8:
      return KvFormat::kInt8;
    case WeightFormat::kInt4:
      return KvFormat::kInt4;
    case WeightFormat::kFull:
      break;
  }
  return UnquantizedKvFormat(policy.dtype);
}

}  // namespace sluice
