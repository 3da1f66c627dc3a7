#include "runtime/model/rotary.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/config_reader.h"
#include "runtime/model/json_file.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr double kMax = 1e30;
constexpr double kTiny = 1e-30;
constexpr double kMaxStretched = 1 << 30;

// The arguments that all types share.
struct Base {
  double theta;
  int32_t dim;
  int32_t max_positions;
  double original_max_positions;
};

// Returns theta ** (arange(0, dim, 2) / dim).
std::vector<float> PositionFrequencies(double theta, int32_t dim) {
  std::vector<float> freqs(dim / 2);
  for (int32_t i = 0; i < dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    freqs[i] = std::pow(static_cast<float>(theta), exponent);
  }
  return freqs;
}

std::vector<float> DefaultInvFreq(double theta, int32_t dim) {
  std::vector<float> inv_freq = PositionFrequencies(theta, dim);
  for (float& f : inv_freq) f = 1.0f / f;
  return inv_freq;
}

RotarySpec Llama3(ConfigReader& reader, const Base& base) {
  RotarySpec rotary;
  rotary.inv_freq = DefaultInvFreq(base.theta, base.dim);
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    if (!reader.Has(key)) reader.Fail(key, "is missing");
  }
  const double factor = reader.Number("factor", 1, kTiny, kMax);
  const double low = reader.Number("low_freq_factor", 1, kTiny, kMax);
  const double high = reader.Number("high_freq_factor", 4, kTiny, kMax);
  if (high == low) {
    reader.Fail("high_freq_factor", "must differ from low_freq_factor");
  }
  if (!reader.status().ok()) return rotary;

  const float context = static_cast<float>(base.original_max_positions);
  const float low_wavelength =
      static_cast<float>(base.original_max_positions / low);
  const float high_wavelength =
      static_cast<float>(base.original_max_positions / high);
  const float two_pi = static_cast<float>(2 * std::numbers::pi);
  for (float& f : rotary.inv_freq) {
    // torch divides a scalar by a tensor as reciprocal times scalar.
    const float wavelength = (1.0f / f) * two_pi;
    const float scaled =
        wavelength > low_wavelength ? f / static_cast<float>(factor) : f;
    if (wavelength < high_wavelength || wavelength > low_wavelength) {
      f = scaled;
      continue;
    }
    const float smooth =
        ((1.0f / wavelength) * context - static_cast<float>(low)) /
        static_cast<float>(high - low);
    f = (1.0f - smooth) * scaled / static_cast<float>(factor) + smooth * scaled;
  }
  return rotary;
}

// The stretched positions, rounded down and at most kMaxStretched.
int32_t Stretched(const Base& base, double factor) {
  return static_cast<int32_t>(
      std::min(base.original_max_positions * factor, kMaxStretched));
}

double YarnMscale(double scale, double mscale) {
  return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

// "YaRN: Efficient Context Window Extension of Large Language Models", 3.2-3.4.
RotarySpec Yarn(ConfigReader& reader, const json& parameters, const Base& base,
                PositionStretch* stretch) {
  RotarySpec rotary;
  if (!parameters.contains("factor")) reader.Fail("factor", "is missing");
  const double factor =
      reader.OptionalNumber("factor", kTiny, kMax)
          .value_or(base.max_positions / base.original_max_positions);
  const std::optional<double> attention_factor =
      reader.OptionalNumber("attention_factor", 0, kMax);
  const double mscale =
      reader.OptionalNumber("mscale", -kMax, kMax).value_or(0);
  const double mscale_all_dim =
      reader.OptionalNumber("mscale_all_dim", -kMax, kMax).value_or(0);
  double beta_fast = reader.OptionalNumber("beta_fast", 0, kMax).value_or(0);
  double beta_slow = reader.OptionalNumber("beta_slow", 0, kMax).value_or(0);
  if (beta_fast == 0) beta_fast = 32;
  if (beta_slow == 0) beta_slow = 1;
  const bool truncate = reader.Bool("truncate", true);
  if (base.theta == 1) reader.Fail("rope_theta", "must not be 1 for yarn");
  if (!reader.status().ok()) return rotary;
  stretch->positions = Stretched(base, factor);

  if (attention_factor) {
    rotary.attention_factor = static_cast<float>(*attention_factor);
  } else if (mscale != 0 && mscale_all_dim != 0) {
    rotary.attention_factor = static_cast<float>(
        YarnMscale(factor, mscale) / YarnMscale(factor, mscale_all_dim));
  } else {
    rotary.attention_factor = static_cast<float>(YarnMscale(factor, 1));
  }

  const auto correction_dim = [&](double rotations) {
    return (base.dim * std::log(base.original_max_positions /
                                (rotations * 2 * std::numbers::pi))) /
           (2 * std::log(base.theta));
  };
  double low = correction_dim(beta_fast);
  double high = correction_dim(beta_slow);
  if (truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(base.dim - 1));
  if (low == high) high += 0.001;

  rotary.inv_freq = PositionFrequencies(base.theta, base.dim);
  for (size_t i = 0; i < rotary.inv_freq.size(); ++i) {
    float& f = rotary.inv_freq[i];
    const float extrapolated = 1.0f / f;
    const float interpolated = 1.0f / (static_cast<float>(factor) * f);
    const float ramp =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) /
                       static_cast<float>(high - low),
                   0.0f, 1.0f);
    const float keep = 1.0f - ramp;
    f = interpolated * (1.0f - keep) + extrapolated * keep;
  }
  return rotary;
}

RotarySpec LongRope(ConfigReader& reader, const Base& base,
                    PositionStretch* stretch) {
  RotarySpec rotary;
  if (base.original_max_positions < base.max_positions) {
    stretch->limit = static_cast<int32_t>(base.original_max_positions);
  }
  const json* factors = reader.OptionalArray("short_factor");
  if (factors == nullptr) {
    reader.Fail("short_factor", "is missing");
    return rotary;
  }
  if (factors->size() != static_cast<size_t>(base.dim / 2)) {
    reader.Fail("short_factor",
                absl::StrCat("must have ", base.dim / 2, " numbers, but has ",
                             factors->size()));
    return rotary;
  }
  const double factor =
      reader.OptionalNumber("factor", kTiny, kMax)
          .value_or(base.max_positions / base.original_max_positions);
  rotary.attention_factor = static_cast<float>(
      reader.OptionalNumber("attention_factor", 0, kMax)
          .value_or(
              factor <= 1
                  ? 1.0
                  : std::sqrt(1 + std::log(factor) /
                                      std::log(base.original_max_positions))));
  rotary.inv_freq = PositionFrequencies(base.theta, base.dim);
  for (size_t i = 0; i < rotary.inv_freq.size(); ++i) {
    const json& short_factor = (*factors)[i];
    if (!short_factor.is_number() || !(short_factor.get<double>() > 0)) {
      reader.Fail("short_factor", "must be a list of positive numbers");
      return rotary;
    }
    rotary.inv_freq[i] =
        1.0f / (short_factor.get<float>() * rotary.inv_freq[i]);
  }
  return rotary;
}

absl::StatusOr<RotarySpec> ParseFlat(const json& config, const json& parameters,
                                     const std::string& prefix,
                                     const RotaryShape& shape,
                                     PositionStretch* stretch) {
  *stretch = {};
  ConfigReader top(config);
  ConfigReader reader(parameters, prefix);
  const char* type_key =
      !reader.Has("rope_type") && reader.Has("type") ? "type" : "rope_type";
  const std::string type = reader.Has(type_key)
                               ? reader.String(type_key, "default")
                               : std::string("default");

  Base base;
  base.dim = shape.dim;
  base.max_positions = shape.max_positions;
  const double top_theta =
      top.OptionalNumber("rope_theta", kTiny, kMax).value_or(shape.theta);
  base.theta =
      reader.OptionalNumber("rope_theta", kTiny, kMax).value_or(top_theta);
  const std::optional<double> top_original =
      top.OptionalNumber("original_max_position_embeddings", 1, 1e12);
  const std::optional<double> original =
      top_original
          ? top_original
          : reader.OptionalNumber("original_max_position_embeddings", 1, 1e12);
  base.original_max_positions = original.value_or(shape.max_positions);
  SLUICE_RETURN_IF_ERROR(top.status());
  SLUICE_RETURN_IF_ERROR(reader.status());

  // transformers ignores it for the default type; with the others these
  // families could not run there at all.
  if (type != "default" && !shape.partial &&
      (reader.OptionalNumber("partial_rotary_factor", 0, 1).value_or(1) != 1 ||
       top.OptionalNumber("partial_rotary_factor", 0, 1).value_or(1) != 1)) {
    return absl::UnimplementedError(
        "partial_rotary_factor other than 1 is not supported");
  }

  RotarySpec rotary;
  if (type == "default") {
    rotary.inv_freq = DefaultInvFreq(base.theta, base.dim);
  } else if (type == "linear" || type == "dynamic") {
    if (!reader.Has("factor")) reader.Fail("factor", "is missing");
    const double factor = reader.Number("factor", 1, kTiny, kMax);
    if (type == "linear") {
      rotary.inv_freq = DefaultInvFreq(base.theta, base.dim);
      for (float& f : rotary.inv_freq) f /= static_cast<float>(factor);
      stretch->positions = Stretched(base, factor);
      stretch->uncertain = !original;
    } else if (base.dim <= 2) {
      reader.Fail("rope_type", "\"dynamic\" needs a head_dim beyond 2");
    } else {
      // The base for sequences up to max_positions; its exact value differs
      // from theta by a rounding error that transformers makes too.
      const double dim = base.dim;
      rotary.inv_freq = DefaultInvFreq(
          base.theta * std::pow(factor - (factor - 1), dim / (dim - 2)),
          base.dim);
    }
  } else if (type == "llama3") {
    rotary = Llama3(reader, base);
  } else if (type == "yarn") {
    rotary = Yarn(reader, parameters, base, stretch);
  } else if (type == "longrope") {
    rotary = LongRope(reader, base, stretch);
  } else {
    reader.Unsupported(type_key, absl::StrCat("\"", type, "\""));
  }
  SLUICE_RETURN_IF_ERROR(reader.status());
  SLUICE_RETURN_IF_ERROR(top.status());
  rotary.dim = shape.dim;
  for (float f : rotary.inv_freq) {
    if (!std::isfinite(f)) {
      return InvalidArgument(
          prefix,
          "rope_theta and its scaling give frequencies that are not "
          "finite");
    }
  }
  return rotary;
}

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

absl::StatusOr<RotarySpec> ParseRotary(
    const json& config, const RotaryShape& shape,
    const std::vector<std::string>& layer_types, PositionStretch* stretch) {
  if (shape.dim % 2 != 0) {
    return InvalidArgument(
        "head_dim", shape.partial ? " times partial_rotary_factor" : "",
        " must be even for rotary embeddings, but is ", shape.dim);
  }
  ConfigReader reader(config);
  std::string prefix = "rope_scaling.";
  const json* parameters = reader.OptionalObject("rope_scaling");
  if (parameters == nullptr || parameters->empty()) {
    prefix = "rope_parameters.";
    parameters = reader.OptionalObject("rope_parameters");
  }
  SLUICE_RETURN_IF_ERROR(reader.status());
  static const json kNone = json::object();
  if (parameters == nullptr) parameters = &kNone;

  // Settings nested by layer type: {"full_attention": {...}, ...}.
  const json* nested = nullptr;
  std::string nested_prefix;
  for (const std::string& layer_type : layer_types) {
    const auto it = parameters->find(layer_type);
    if (it == parameters->end()) continue;
    if (!it->is_object()) {
      return InvalidArgument(prefix, layer_type, " must be an object");
    }
    if (nested != nullptr && *nested != *it) {
      return Unimplemented(
          prefix, layer_type,
          ": rotary settings that differ by layer are not supported");
    }
    nested = &*it;
    nested_prefix = absl::StrCat(prefix, layer_type, ".");
  }
  if (nested != nullptr) {
    for (const std::string& layer_type : layer_types) {
      if (!parameters->contains(layer_type)) {
        return InvalidArgument(prefix, layer_type, " is missing");
      }
    }
    return ParseFlat(config, *nested, nested_prefix, shape, stretch);
  }
  return ParseFlat(config, *parameters, prefix, shape, stretch);
}

std::string DescribePositions(const DecoderSpec& spec,
                              absl::string_view config_json) {
  const std::string takes =
      absl::StrCat("takes ", spec.max_positions, " positions: ");
  if (spec.positions == PositionKind::kLearned) {
    return takes + "its table of positions has no more";
  }
  if (spec.alibi()) {
    return takes + "the seq_length of config.json, or 2048 where it has none";
  }
  std::string type;
  if (auto config = ParseJsonObject(config_json); config.ok()) {
    const auto text = config->find(kTextConfig);
    if (text != config->end()) *config = json(*text);
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
  if (type == "longrope" || type == "su") {
    return takes +
           "beyond them, \"longrope\" has other factors for the whole "
           "sequence, which its first tokens could not know";
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
