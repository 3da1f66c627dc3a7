#include "common/codec/profile_json.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/text/text.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// A value that fits this width is written in one line.
constexpr size_t kLineWidth = 76;

// ---------------------------------------------------------------- the keys

template <typename P, typename T>
concept Of = std::same_as<std::remove_const_t<P>, T>;

// Hands the members of `p` to `member`, each with its key in the file, in the
// file's order. With `writing`, members that a machine lacks are left out.

template <Of<ProductRate> P>
void Members(P& p, bool writing, const auto& member) {
  member("dtype", p.dtype);
  member("weights", p.weights);
  member("flops_by_rows", p.flops_by_rows);
}

template <Of<CodeRate> P>
void Members(P& p, bool writing, const auto& member) {
  member("format", p.format);
  member("dtype", p.dtype);
  member("flops_by_rows", p.flops_by_rows);
  member("decode_bytes_per_second", p.decode_bytes_per_second);
}

template <Of<AttentionRate> P>
void Members(P& p, bool writing, const auto& member) {
  member("format", p.format);
  member("decode_bytes_by_context", p.decode_bytes_by_context);
  member("prefill_flops_by_context", p.prefill_flops_by_context);
}

template <Of<ComputeProfile> P>
void Members(P& p, bool writing, const auto& member) {
  member("memory_bytes_per_second", p.memory_bytes_per_second);
  member("products", p.products);
  if (!writing || !p.codes.empty()) member("codes", p.codes);
  member("attention", p.attention);
  member("quantize_bytes_per_second", p.quantize_bytes_per_second);
  member("dequantize_bytes_per_second", p.dequantize_bytes_per_second);
  member("layer_seconds", p.layer_seconds);
  member("row_element_seconds", p.row_element_seconds);
  member("logit_seconds", p.logit_seconds);
  member("share_by_threads", p.share_by_threads);
}

template <Of<DiskRate> P>
void Members(P& p, bool writing, const auto& member) {
  member("request_bytes", p.request_bytes);
  member("depth", p.depth);
  member("read_bytes_per_second", p.read_bytes_per_second);
  member("write_bytes_per_second", p.write_bytes_per_second);
}

template <Of<DiskProfile> P>
void Members(P& p, bool writing, const auto& member) {
  member("read_bytes_per_second", p.read_bytes_per_second);
  member("write_bytes_per_second", p.write_bytes_per_second);
  member("rates", p.rates);
  member("compute_seconds_per_byte", p.compute_seconds_per_byte);
  member("direct", p.direct);
}

template <Of<LinkProfile> P>
void Members(P& p, bool writing, const auto& member) {
  member("peer", p.peer);
  member("bytes_per_second", p.bytes_per_second);
  member("latency_seconds", p.latency_seconds);
}

template <Of<ExchangeProfile> P>
void Members(P& p, bool writing, const auto& member) {
  member("bytes_per_second", p.bytes_per_second);
  member("latency_seconds", p.latency_seconds);
}

template <Of<RankChoice> P>
void Members(P& p, bool writing, const auto& member) {
  member("ranks", p.ranks);
  member("memory_share", p.memory_share);
  member("product_share", p.product_share);
  member("exchange", p.exchange);
}

template <Of<MachineProfile> P>
void Members(P& p, bool writing, const auto& member) {
  int32_t version = MachineProfile::kVersion;  // checked when it is read
  member("version", version);
  member("name", p.name);
  member("machine", p.machine);
  member("fingerprint", p.fingerprint);
  member("device", p.device);
  member("remarks", p.remarks);
  if (!writing || p.disturbed) member("disturbed", p.disturbed);
  member("device_memory_bytes", p.device_memory_bytes);
  member("host_memory_bytes", p.host_memory_bytes);
  member("disk_bytes", p.disk_bytes);
  member("threads", p.threads);
  if (!writing || p.cores > 0) member("cores", p.cores);
  if (!writing || p.ranks > 1) member("ranks", p.ranks);
  if (!writing || p.has_exchange()) member("exchange", p.exchange);
  if (!writing || !p.rank_choices.empty()) {
    member("rank_choices", p.rank_choices);
  }
  if (!writing || !p.part_of.empty()) member("part_of", p.part_of);
  member("host", p.host);
  if (!writing || p.has_device()) {
    member("device_compute", p.device_compute);
    member("host_to_device_bytes_per_second",
           p.host_to_device_bytes_per_second);
    member("device_to_host_bytes_per_second",
           p.device_to_host_bytes_per_second);
  }
  member("disk", p.disk);
  member("links", p.links);
  if (!writing || p.nccl_links) member("nccl_links", p.nccl_links);
  member("step_seconds", p.step_seconds);
}

// ---------------------------------------------------------------- writing

// Writer and Reader are classes so that their functions can call each other in
// any order.
struct Writer {
  static Json ToJson(double value) { return value; }
  static Json ToJson(uint64_t value) { return value; }
  static Json ToJson(int32_t value) { return value; }
  static Json ToJson(bool value) { return value; }
  static Json ToJson(const std::string& value) { return value; }
  static Json ToJson(DType value) { return std::string(DTypeName(value)); }
  static Json ToJson(WeightFormat value) {
    return std::string(WeightFormatName(value));
  }
  static Json ToJson(KvFormat value) {
    return std::string(KvFormatName(value));
  }
  static Json ToJson(const RateCurve& curve) {
    Json out = Json::array();
    for (const RateCurve::Point& point : curve.points()) {
      out.push_back(Json::array({point.x, point.rate}));
    }
    return out;
  }
  template <typename T>
  static Json ToJson(const std::vector<T>& list) {
    Json out = Json::array();
    for (const T& element : list) out.push_back(ToJson(element));
    return out;
  }
  template <typename T>
  static Json ToJson(const T& value) {
    Json out = Json::object();
    Members(value, /*writing=*/true, [&](const char* key, const auto& member) {
      out[key] = ToJson(member);
    });
    return out;
  }
};

std::string Dump(const Json& json) {
  // A name that is not UTF-8 must not stop the writing.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Print(const Json& json, size_t indent, std::string* out) {
  const std::string line = Dump(json);
  const bool small = !json.is_structured() || json.empty() ||
                     (indent > 0 && line.size() + indent <= kLineWidth);
  if (small) {
    *out += line;
    return;
  }
  const std::string blanks(indent + 2, ' ');
  const char* separator = "\n";
  *out += json.is_object() ? "{" : "[";
  for (const auto& [key, value] : json.items()) {
    *out += separator;
    *out += blanks;
    if (json.is_object()) *out += Dump(Json(key)) + ": ";
    Print(value, indent + 2, out);
    separator = ",\n";
  }
  *out += "\n" + std::string(indent, ' ') + (json.is_object() ? "}" : "]");
}

// ---------------------------------------------------------------- reading

std::string Join(const std::string& path, absl::string_view key) {
  return path.empty() ? std::string(key) : absl::StrCat(path, ".", key);
}

absl::Status WrongType(const std::string& path, absl::string_view must,
                       const Json& json) {
  std::string shown = Dump(json);
  if (shown.size() > 40) shown = shown.substr(0, 37) + "...";
  return InvalidArgument(path, ": ", shown, " must be ", must);
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (DTypeName(dtype) == name) return dtype;
  }
  return InvalidArgument("\"", name, "\" must be float32, bfloat16 or float16");
}

struct Reader {
  static absl::Status Read(const Json& json, const std::string& path,
                           double* out) {
    if (!json.is_number()) return WrongType(path, "a number", json);
    *out = json.get<double>();
    return absl::OkStatus();
  }

  static absl::Status Read(const Json& json, const std::string& path,
                           uint64_t* out) {
    constexpr absl::string_view kMust = "a whole number, 0 or more";
    if (json.is_number_unsigned()) {
      *out = json.get<uint64_t>();
    } else if (json.is_number_float()) {  // 1.6e10
      const double value = json.get<double>();
      if (!(value >= 0 && value < 9e18) || value != std::floor(value)) {
        return WrongType(path, kMust, json);
      }
      *out = static_cast<uint64_t>(value);
    } else {
      return WrongType(path, kMust, json);
    }
    return absl::OkStatus();
  }

  static absl::Status Read(const Json& json, const std::string& path,
                           int32_t* out) {
    if (!json.is_number_integer() ||
        json.get<double>() > std::numeric_limits<int32_t>::max() ||
        json.get<double>() < std::numeric_limits<int32_t>::min()) {
      return WrongType(path, "a whole number of at most 2147483647", json);
    }
    *out = json.get<int32_t>();
    return absl::OkStatus();
  }

  static absl::Status Read(const Json& json, const std::string& path,
                           bool* out) {
    if (!json.is_boolean()) return WrongType(path, "true or false", json);
    *out = json.get<bool>();
    return absl::OkStatus();
  }

  static absl::Status Read(const Json& json, const std::string& path,
                           std::string* out) {
    if (!json.is_string()) return WrongType(path, "a string", json);
    *out = json.get<std::string>();
    return absl::OkStatus();
  }

  static absl::Status Read(const Json& json, const std::string& path,
                           RateCurve* out) {
    if (json.is_number()) {
      *out = RateCurve::Constant(json.get<double>());
      return absl::OkStatus();
    }
    if (!json.is_array()) {
      return WrongType(path, "a list of points [x, rate], or a number", json);
    }
    std::vector<RateCurve::Point> points;
    for (size_t i = 0; i < json.size(); ++i) {
      const Json& pair = json[i];
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() ||
          !pair[1].is_number()) {
        return WrongType(absl::StrCat(path, "[", i, "]"),
                         "two numbers, [x, rate]", pair);
      }
      points.push_back({pair[0].get<double>(), pair[1].get<double>()});
    }
    *out = RateCurve(std::move(points));
    return absl::OkStatus();
  }

  // Reads an enumeration's name, as the parser of the flags takes it.
  template <typename T>
  static absl::Status ReadName(const Json& json, const std::string& path,
                               absl::StatusOr<T> (*parse)(absl::string_view),
                               T* out) {
    std::string name;
    SLUICE_RETURN_IF_ERROR(Read(json, path, &name));
    SLUICE_ASSIGN_OR_RETURN(*out, Annotate(parse(name), path));
    return absl::OkStatus();
  }

  static absl::Status Read(const Json& json, const std::string& path,
                           DType* out) {
    return ReadName(json, path, &ParseDType, out);
  }

  static absl::Status Read(const Json& json, const std::string& path,
                           WeightFormat* out) {
    return ReadName(json, path, &ParseWeightFormat, out);
  }

  static absl::Status Read(const Json& json, const std::string& path,
                           KvFormat* out) {
    return ReadName(json, path, &ParseKvFormat, out);
  }

  template <typename T>
  static absl::Status Read(const Json& json, const std::string& path,
                           std::vector<T>* out) {
    if (!json.is_array()) return WrongType(path, "a list", json);
    out->clear();
    for (size_t i = 0; i < json.size(); ++i) {
      SLUICE_RETURN_IF_ERROR(
          Read(json[i], absl::StrCat(path, "[", i, "]"), &out->emplace_back()));
    }
    return absl::OkStatus();
  }

  template <typename T>
  static absl::Status Read(const Json& json, const std::string& path, T* out) {
    if (!json.is_object()) {
      return WrongType(path.empty() ? "the profile" : path, "an object", json);
    }
    std::vector<std::string> known;
    absl::Status status;
    Members(*out, /*writing=*/false, [&](const char* key, auto& member) {
      known.push_back(key);
      const auto it = json.find(key);
      if (!status.ok() || it == json.end()) return;
      status = Read(*it, Join(path, key), &member);
    });
    SLUICE_RETURN_IF_ERROR(status);
    for (const auto& [key, value] : json.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      return InvalidArgument(Join(path, key), ": no such key; there are ",
                             absl::StrJoin(known, ", "));
    }
    return absl::OkStatus();
  }
};

absl::Status ReadProfile(const Json& json, MachineProfile* p) {
  if (!json.is_object()) return Reader::Read(json, "", p);  // reports the error
  // The version is read first: another version may have any keys.
  if (!json.contains("version")) {
    return InvalidArgument("version: missing; this build reads ",
                           MachineProfile::kVersion);
  }
  int32_t version = 0;
  SLUICE_RETURN_IF_ERROR(Reader::Read(json["version"], "version", &version));
  if (version != MachineProfile::kVersion) {
    return InvalidArgument("version: ", version,
                           " is not the one that this build ", "reads, ",
                           MachineProfile::kVersion);
  }
  return Reader::Read(json, "", p);
}

// Finds errors that nlohmann's parser lets pass: it silently drops one of two
// members with the same key, and does not limit the nesting.
class Watch {
 public:
  // Returns false if the parser is to skip the value that begins here.
  bool See(int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth > kMaxDepth) {
      error_ = "nested too deeply";
      return false;
    }
    if (event == Json::parse_event_t::object_start) seen_.emplace_back();
    if (event == Json::parse_event_t::object_end) seen_.pop_back();
    if (event == Json::parse_event_t::key &&
        !seen_.back().insert(parsed.get<std::string>()).second) {
      error_ = absl::StrCat("the key ", Dump(parsed), " is there twice");
    }
    return true;
  }
  const std::string& error() const { return error_; }

 private:
  static constexpr int kMaxDepth = 16;
  std::vector<std::set<std::string>> seen_;  // the keys so far at each level
  std::string error_;
};

}  // namespace

std::string ProfileToJson(const MachineProfile& profile) {
  std::string out;
  Print(Writer::ToJson(profile), 0, &out);
  out += "\n";
  return out;
}

absl::StatusOr<MachineProfile> ProfileFromJson(absl::string_view text) {
  if (text.size() > kMaxProfileFileBytes) {
    return InvalidArgument("the profile has ", text.size(),
                           " bytes: more than ", kMaxProfileFileBytes);
  }
  Json json;
  Watch watch;
  try {
    json = Json::parse(
        text.begin(), text.end(),
        [&](int depth, Json::parse_event_t event, Json& parsed) {
          return watch.See(depth, event, parsed);
        },
        /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const nlohmann::json::exception& e) {
    return InvalidArgument("the profile is no JSON: ", JsonErrorText(e.what()));
  }
  if (!watch.error().empty()) {
    return absl::InvalidArgumentError(watch.error());
  }
  MachineProfile profile;
  SLUICE_RETURN_IF_ERROR(ReadProfile(json, &profile));
  SLUICE_RETURN_IF_ERROR(profile.Check());
  return profile;
}

}  // namespace sluice
