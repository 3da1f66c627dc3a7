#include "runtime/model/checkpoint/quantization/quantization_config.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "runtime/model/config_reader.h"
#include "runtime/model/json_file.h"

namespace sluice {
namespace {

constexpr int32_t kMaxGroup = 1 << 20;
constexpr int32_t kMxFp4Group = 32;
constexpr size_t kMaxConfigGroups = 64;

// A name of the file, for messages.
std::string Named(const std::string& name) {
  return absl::StrCat("\"", name.substr(0, 60), "\"");
}

// Reads [rows, columns] of a block; false if the key is absent or null.
bool ReadBlock(ConfigReader& reader, const char* key, QuantizedFormat& format) {
  const nlohmann::json* const block = reader.OptionalArray(key);
  if (block == nullptr) return false;
  const auto size = [&](size_t i) {
    const nlohmann::json& value = (*block)[i];
    return value.is_number_unsigned() && value.get<uint64_t>() > 0 &&
                   value.get<uint64_t>() <= kMaxGroup
               ? static_cast<int32_t>(value.get<uint64_t>())
               : 0;
  };
  if (block->size() != 2 || size(0) == 0 || size(1) == 0) {
    reader.Fail(key, absl::StrCat("must be two integers in [1, ", kMaxGroup,
                                  "]: rows and columns of a block"));
    return false;
  }
  format.strategy = ScaleStrategy::kBlock;
  format.block_rows = size(0);
  format.block_columns = size(1);
  return true;
}

// Reads a group's size; -1 is a whole row.
void ReadGroup(ConfigReader& reader, const char* key, QuantizedFormat& format) {
  const int32_t size = reader.Int(key, 128, -1, kMaxGroup);
  if (size == 0) {
    reader.Fail(key, "must be -1 or positive, but is 0");
  }
  format.strategy = size < 0 ? ScaleStrategy::kChannel : ScaleStrategy::kGroup;
  format.group_size = size < 0 ? 0 : size;
}

// Reads quant_method "fp8": DeepSeek's, Qwen's and transformers' files have
// blocks; those without weight_block_size a scale for each row or tensor.
void ReadFp8(ConfigReader& reader, QuantizationConfig& config) {
  const std::string format = reader.String("fmt", "e4m3");
  if (format != "e4m3" && format != "float8_e4m3fn") {
    reader.Unsupported("fmt", Named(format));
  }
  QuantizedFormat& weights = config.formats.emplace_back();
  weights.floats = true;
  ReadBlock(reader, "weight_block_size", weights);
  config.activations = true;
}

void ReadGptq(ConfigReader& reader, QuantizationConfig& config) {
  QuantizedFormat& weights = config.formats.emplace_back();
  if (!reader.Has("bits")) reader.Fail("bits", "is missing");
  weights.bits = reader.Int("bits", 4, 1, 16);
  if (weights.bits != 4 && weights.bits != 8) {
    reader.Unsupported("bits", absl::StrCat(weights.bits, " (4 and 8 are)"));
  }
  ReadGroup(reader, "group_size", weights);
  weights.symmetric = false;  // zero points are stored in any case
  const char* const key =
      reader.Has("checkpoint_format") ? "checkpoint_format" : "format";
  const std::string format =
      absl::AsciiStrToLower(reader.Has(key) ? reader.String(key, "") : "gptq");
  if (format != "gptq" && format != "gptq_v2") {
    reader.Unsupported(key, Named(format));
  }
  config.zeros_less_one = format == "gptq";
  // Rules of modules that are not quantized say nothing that files do not.
  if (const nlohmann::json* rules = reader.OptionalObject("dynamic")) {
    for (const auto& [pattern, settings] : rules->items()) {
      if (pattern.rfind("-:", 0) == 0) continue;
      reader.Unsupported("dynamic", "with settings of some modules only");
    }
  }
}

void ReadAwq(ConfigReader& reader, QuantizationConfig& config) {
  QuantizedFormat& weights = config.formats.emplace_back();
  const char* const bits = reader.Has("w_bit") ? "w_bit" : "bits";
  weights.bits = reader.Int(bits, 4, 1, 16);
  if (weights.bits != 4) {
    reader.Unsupported(bits, absl::StrCat(weights.bits, " (4 is)"));
  }
  ReadGroup(reader, reader.Has("q_group_size") ? "q_group_size" : "group_size",
            weights);
  weights.symmetric = false;
  if (!reader.Bool("zero_point", true)) {
    reader.Unsupported("zero_point", "false");
  }
  const char* const key = reader.Has("version") ? "version" : "format";
  const std::string version =
      absl::AsciiStrToLower(reader.Has(key) ? reader.String(key, "") : "gemm");
  if (version != "gemm") reader.Unsupported(key, Named(version));
}

// Reads quant_method "mxfp4", gpt-oss's, which has nothing to say but that.
void ReadMxFp4(QuantizationConfig& config) {
  QuantizedFormat& weights = config.formats.emplace_back();
  weights.floats = true;
  weights.bits = 4;
  weights.strategy = ScaleStrategy::kGroup;
  weights.group_size = kMxFp4Group;
}

// Reads the weights of one of compressed-tensors' config_groups.
void ReadScheme(ConfigReader& reader, QuantizedFormat& weights) {
  const std::string type = absl::AsciiStrToLower(reader.String("type", "int"));
  if (type != "int" && type != "float") {
    reader.Unsupported("type", Named(type));
  }
  weights.floats = type == "float";
  weights.bits = reader.Int("num_bits", 8, 1, 64);
  if (weights.bits != 8 && weights.bits != 4) {
    reader.Unsupported("num_bits",
                       absl::StrCat(weights.bits, " of type ", Named(type)));
  }
  weights.symmetric = reader.Bool("symmetric", true);
  const bool grouped =
      reader.OptionalInt("group_size", -1, kMaxGroup).value_or(-1) > 0;
  // The default of the strategy is what the other keys imply.
  std::string strategy = absl::AsciiStrToLower(
      reader.Has("strategy")     ? reader.String("strategy", "")
      : grouped                  ? "group"
      : reader.Has("group_size") ? "channel"
                                 : "tensor");
  if (strategy == "group") {
    ReadGroup(reader, "group_size", weights);
  } else if (strategy == "channel") {
    weights.strategy = ScaleStrategy::kChannel;
  } else if (strategy == "tensor") {
    weights.strategy = ScaleStrategy::kTensor;
  } else if (strategy == "block") {
    if (!ReadBlock(reader, "block_structure", weights)) {
      reader.Fail("block_structure", "must be two integers of strategy block");
    }
  } else {
    reader.Unsupported("strategy", Named(strategy));
  }
  const bool mxfp4 = weights.strategy == ScaleStrategy::kGroup &&
                     weights.group_size == kMxFp4Group;
  if (weights.floats && weights.bits == 4 && !mxfp4) {
    reader.Unsupported("num_bits",
                       "4 of type \"float\" but in groups of 32 (MXFP4)");
  }
}

absl::Status ReadGroups(const nlohmann::json& groups,
                        QuantizationConfig& config) {
  if (groups.empty() || groups.size() > kMaxConfigGroups) {
    return InvalidArgument("quantization_config.config_groups must have 1 to ",
                           kMaxConfigGroups, " groups, but has ",
                           groups.size());
  }
  for (const auto& [name, group] : groups.items()) {
    const std::string at = absl::StrCat("quantization_config.config_groups.",
                                        name.substr(0, 60), ".");
    if (!group.is_object()) {
      return InvalidArgument(at, "weights is missing");
    }
    ConfigReader reader(group, at);
    const nlohmann::json* const weights = reader.OptionalObject("weights");
    if (reader.Has("input_activations") || reader.Has("output_activations")) {
      config.activations = true;
    }
    SLUICE_RETURN_IF_ERROR(reader.status());
    if (weights == nullptr) continue;  // only activations are quantized
    ConfigReader scheme(*weights, at + "weights.");
    ReadScheme(scheme, config.formats.emplace_back());
    SLUICE_RETURN_IF_ERROR(scheme.status());
  }
  return absl::OkStatus();
}

absl::Status ReadCompressed(ConfigReader& reader, QuantizationConfig& config) {
  const std::string format = reader.String("format", "");
  bool known = false;
  for (const char* name :
       {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
        "mxfp4-pack-quantized", "mixed-precision", "dense"}) {
    known = known || format == name;
  }
  if (!known) reader.Unsupported("format", Named(format));
  if (const auto* sparsity = reader.OptionalObject("sparsity_config")) {
    ConfigReader sparse(*sparsity, "quantization_config.sparsity_config.");
    const std::string kind = sparse.String("format", "dense");
    if (kind != "dense") sparse.Unsupported("format", Named(kind));
    SLUICE_RETURN_IF_ERROR(sparse.status());
  }
  config.kv_cache = reader.Has("kv_cache_scheme");
  const nlohmann::json* const groups = reader.OptionalObject("config_groups");
  SLUICE_RETURN_IF_ERROR(reader.status());
  if (groups == nullptr) {
    return absl::InvalidArgumentError(
        "quantization_config.config_groups is missing");
  }
  return ReadGroups(*groups, config);
}

const nlohmann::json* FindQuantization(const nlohmann::json& config) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    const auto it = config.find(key);
    if (it != config.end() && !it->is_null()) return &*it;
  }
  const auto text = config.find("text_config");
  return text != config.end() && text->is_object() ? FindQuantization(*text)
                                                   : nullptr;
}

std::string DescribeFormat(const QuantizedFormat& format) {
  const std::string codes = !format.floats ? absl::StrCat(format.bits, " bits")
                            : format.bits == 4 ? "MXFP4"
                                               : "FP8";
  switch (format.strategy) {
    case ScaleStrategy::kTensor:
      return codes + ", a scale each tensor";
    case ScaleStrategy::kChannel:
      return codes + ", a scale each row";
    case ScaleStrategy::kGroup:
      return absl::StrCat(codes, ", groups of ", format.group_size);
    case ScaleStrategy::kBlock:
      return absl::StrCat(codes, ", ", format.block_rows, " x ",
                          format.block_columns, " blocks");
  }
  return codes;
}

}  // namespace

std::string QuantizationConfig::Description() const {
  std::string formats_text =
      absl::StrJoin(formats, "; ", [](std::string* out, const auto& format) {
        absl::StrAppend(out, DescribeFormat(format));
      });
  switch (method) {
    case Method::kNone:
      return "";
    case Method::kFp8:
      return formats[0].strategy == ScaleStrategy::kBlock
                 ? formats_text
                 : "FP8, a scale each row or tensor";
    case Method::kGptq:
      return "GPTQ, " + formats_text;
    case Method::kAwq:
      return "AWQ, " + formats_text;
    case Method::kMxFp4:
      return formats_text;
    case Method::kCompressedTensors:
      return "compressed-tensors, " + formats_text;
  }
  return "";
}

std::string QuantizationConfig::Key() const {
  std::string key = absl::StrCat(Description(), zeros_less_one ? "-1" : "");
  for (const QuantizedFormat& format : formats) {
    absl::StrAppend(&key, format.symmetric ? "s" : "z");
  }
  return key;
}

absl::StatusOr<QuantizationConfig> ParseQuantizationConfig(
    const nlohmann::json& config) {
  QuantizationConfig result;
  const nlohmann::json* const given = FindQuantization(config);
  if (given == nullptr) return result;
  constexpr char kKey[] = "quantization_config";
  if (!given->is_object()) return InvalidArgument(kKey, " must be an object");
  ConfigReader reader(*given, absl::StrCat(kKey, "."));
  if (!reader.Has("quant_method")) reader.Fail("quant_method", "is missing");
  const std::string method = reader.String("quant_method", "");
  if (method == "fp8" || method == "fbgemm_fp8") {
    result.method = QuantizationConfig::Method::kFp8;
    ReadFp8(reader, result);
  } else if (method == "gptq") {
    result.method = QuantizationConfig::Method::kGptq;
    ReadGptq(reader, result);
  } else if (method == "awq") {
    result.method = QuantizationConfig::Method::kAwq;
    ReadAwq(reader, result);
  } else if (method == "mxfp4") {
    result.method = QuantizationConfig::Method::kMxFp4;
    ReadMxFp4(result);
  } else if (method == "compressed-tensors") {
    result.method = QuantizationConfig::Method::kCompressedTensors;
    SLUICE_RETURN_IF_ERROR(ReadCompressed(reader, result));
  } else {
    SLUICE_RETURN_IF_ERROR(reader.status());
    return Unimplemented(kKey, ".quant_method ", Named(method),
                         " is not supported (fp8, fbgemm_fp8, gptq, awq, "
                         "mxfp4, compressed-tensors are)");
  }
  SLUICE_RETURN_IF_ERROR(reader.status());
  return result;
}

absl::StatusOr<QuantizationConfig> ParseQuantizationText(
    absl::string_view config_json) {
  SLUICE_ASSIGN_OR_RETURN(const nlohmann::json config,
                          ParseJsonObject(config_json));
  return ParseQuantizationConfig(config);
}

}  // namespace sluice
