#include "runtime/profile/profile_json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// What is shorter is written in one line.
constexpr size_t kLineWidth = 76;

// ---------------------------------------------------------------- writing

Json ToJson(const ProductRate& rate);
Json ToJson(const AttentionRate& rate);
Json ToJson(const DiskRate& rate);
Json ToJson(const LinkProfile& link);

Json ToJson(const RateCurve& curve) {
  Json out = Json::array();
  for (const RateCurve::Point& point : curve.points()) {
    out.push_back(Json::array({point.x, point.rate}));
  }
  return out;
}

template <typename T>
Json ListToJson(const std::vector<T>& list) {
  Json out = Json::array();
  for (const T& element : list) out.push_back(ToJson(element));
  return out;
}

std::string Text(absl::string_view text) {
  return std::string(text.data(), text.size());
}

Json ToJson(const ProductRate& rate) {
  return {{"dtype", Text(DTypeName(rate.dtype))},
          {"weights", Text(WeightFormatName(rate.weights))},
          {"flops_by_rows", ToJson(rate.flops_by_rows)}};
}

Json ToJson(const AttentionRate& rate) {
  return {{"format", Text(KvFormatName(rate.format))},
          {"decode_bytes_by_context", ToJson(rate.decode_bytes_by_context)},
          {"prefill_flops_by_context", ToJson(rate.prefill_flops_by_context)}};
}

Json ToJson(const ComputeProfile& c) {
  return {{"memory_bytes_per_second", c.memory_bytes_per_second},
          {"products", ListToJson(c.products)},
          {"attention", ListToJson(c.attention)},
          {"quantize_bytes_per_second", c.quantize_bytes_per_second},
          {"dequantize_bytes_per_second", c.dequantize_bytes_per_second},
          {"layer_seconds", c.layer_seconds},
          {"row_element_seconds", c.row_element_seconds},
          {"logit_seconds", c.logit_seconds},
          {"share_by_threads", ToJson(c.share_by_threads)}};
}

Json ToJson(const DiskRate& rate) {
  return {{"request_bytes", rate.request_bytes},
          {"depth", rate.depth},
          {"read_bytes_per_second", rate.read_bytes_per_second},
          {"write_bytes_per_second", rate.write_bytes_per_second}};
}

Json ToJson(const DiskProfile& disk) {
  return {{"read_bytes_per_second", disk.read_bytes_per_second},
          {"write_bytes_per_second", disk.write_bytes_per_second},
          {"rates", ListToJson(disk.rates)},
          {"compute_seconds_per_byte", disk.compute_seconds_per_byte},
          {"direct", disk.direct}};
}

Json ToJson(const LinkProfile& link) {
  return {{"peer", link.peer},
          {"bytes_per_second", link.bytes_per_second},
          {"latency_seconds", link.latency_seconds}};
}

Json ToJson(const MachineProfile& p) {
  Json out = {{"version", MachineProfile::kVersion},
              {"name", p.name},
              {"machine", p.machine},
              {"fingerprint", p.fingerprint},
              {"device", p.device},
              {"remarks", p.remarks},
              {"device_memory_bytes", p.device_memory_bytes},
              {"host_memory_bytes", p.host_memory_bytes},
              {"disk_bytes", p.disk_bytes},
              {"threads", p.threads},
              {"host", ToJson(p.host)}};
  if (p.has_device()) {
    out["device_compute"] = ToJson(p.device_compute);
    out["host_to_device_bytes_per_second"] = p.host_to_device_bytes_per_second;
    out["device_to_host_bytes_per_second"] = p.device_to_host_bytes_per_second;
  }
  out["disk"] = ToJson(p.disk);
  out["links"] = ListToJson(p.links);
  out["step_seconds"] = p.step_seconds;
  return out;
}

std::string Dump(const Json& json) {
  // What is no UTF-8 (a name may be anything) must not stop the writing.
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
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", shown, " must be ", must));
}

absl::Status Read(const Json& json, const std::string& path, double* out) {
  if (!json.is_number()) return WrongType(path, "a number", json);
  *out = json.get<double>();
  return absl::OkStatus();
}

absl::Status Read(const Json& json, const std::string& path, uint64_t* out) {
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

absl::Status Read(const Json& json, const std::string& path, int32_t* out) {
  if (!json.is_number_integer() ||
      json.get<double>() > std::numeric_limits<int32_t>::max() ||
      json.get<double>() < std::numeric_limits<int32_t>::min()) {
    return WrongType(path, "a whole number of at most 2147483647", json);
  }
  *out = json.get<int32_t>();
  return absl::OkStatus();
}

absl::Status Read(const Json& json, const std::string& path, bool* out) {
  if (!json.is_boolean()) return WrongType(path, "true or false", json);
  *out = json.get<bool>();
  return absl::OkStatus();
}

absl::Status Read(const Json& json, const std::string& path, std::string* out) {
  if (!json.is_string()) return WrongType(path, "a string", json);
  *out = json.get<std::string>();
  return absl::OkStatus();
}

absl::Status Read(const Json& json, const std::string& path, RateCurve* out) {
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

// One of an enumeration's names, as the parser of the flags takes them.
template <typename T>
absl::Status ReadName(const Json& json, const std::string& path,
                      absl::StatusOr<T> (*parse)(absl::string_view), T* out) {
  std::string name;
  SLUICE_RETURN_IF_ERROR(Read(json, path, &name));
  absl::StatusOr<T> value = parse(name);
  if (!value.ok()) return Annotate(value.status(), path);
  *out = *value;
  return absl::OkStatus();
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (DTypeName(dtype) == name) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\" must be float32, bfloat16 or float16"));
}

absl::Status Read(const Json& json, const std::string& path, DType* out) {
  return ReadName(json, path, &ParseDType, out);
}

absl::Status Read(const Json& json, const std::string& path,
                  WeightFormat* out) {
  return ReadName(json, path, &ParseWeightFormat, out);
}

absl::Status Read(const Json& json, const std::string& path, KvFormat* out) {
  return ReadName(json, path, &ParseKvFormat, out);
}

absl::Status Read(const Json& json, const std::string& path, ProductRate* out);
absl::Status Read(const Json& json, const std::string& path,
                  AttentionRate* out);
absl::Status Read(const Json& json, const std::string& path, DiskRate* out);
absl::Status Read(const Json& json, const std::string& path, LinkProfile* out);
absl::Status Read(const Json& json, const std::string& path,
                  ComputeProfile* out);
absl::Status Read(const Json& json, const std::string& path, DiskProfile* out);

template <typename T>
absl::Status Read(const Json& json, const std::string& path,
                  std::vector<T>* out) {
  if (!json.is_array()) return WrongType(path, "a list", json);
  out->clear();
  for (size_t i = 0; i < json.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(
        Read(json[i], absl::StrCat(path, "[", i, "]"), &out->emplace_back()));
  }
  return absl::OkStatus();
}

// Reads an object's members: Member() for each that there may be, then End().
class Members {
 public:
  Members(const Json& json, std::string path)
      : json_(json), path_(std::move(path)) {
    if (!json.is_object()) {
      status_ =
          WrongType(path_.empty() ? "the profile" : path_, "an object", json);
    }
  }

  template <typename T>
  Members& Member(const char* key, T* out) {
    known_.push_back(key);
    if (!status_.ok()) return *this;
    const auto it = json_.find(key);
    if (it != json_.end()) status_ = Read(*it, Join(path_, key), out);
    return *this;
  }

  absl::Status End() const {
    SLUICE_RETURN_IF_ERROR(status_);
    for (const auto& [key, value] : json_.items()) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat(Join(path_, key), ": no such key; there are ",
                       absl::StrJoin(known_, ", ")));
    }
    return absl::OkStatus();
  }

 private:
  const Json& json_;
  const std::string path_;
  std::vector<std::string> known_;
  absl::Status status_;
};

absl::Status Read(const Json& json, const std::string& path, ProductRate* out) {
  return Members(json, path)
      .Member("dtype", &out->dtype)
      .Member("weights", &out->weights)
      .Member("flops_by_rows", &out->flops_by_rows)
      .End();
}

absl::Status Read(const Json& json, const std::string& path,
                  AttentionRate* out) {
  return Members(json, path)
      .Member("format", &out->format)
      .Member("decode_bytes_by_context", &out->decode_bytes_by_context)
      .Member("prefill_flops_by_context", &out->prefill_flops_by_context)
      .End();
}

absl::Status Read(const Json& json, const std::string& path,
                  ComputeProfile* out) {
  return Members(json, path)
      .Member("memory_bytes_per_second", &out->memory_bytes_per_second)
      .Member("products", &out->products)
      .Member("attention", &out->attention)
      .Member("quantize_bytes_per_second", &out->quantize_bytes_per_second)
      .Member("dequantize_bytes_per_second", &out->dequantize_bytes_per_second)
      .Member("layer_seconds", &out->layer_seconds)
      .Member("row_element_seconds", &out->row_element_seconds)
      .Member("logit_seconds", &out->logit_seconds)
      .Member("share_by_threads", &out->share_by_threads)
      .End();
}

absl::Status Read(const Json& json, const std::string& path, DiskRate* out) {
  return Members(json, path)
      .Member("request_bytes", &out->request_bytes)
      .Member("depth", &out->depth)
      .Member("read_bytes_per_second", &out->read_bytes_per_second)
      .Member("write_bytes_per_second", &out->write_bytes_per_second)
      .End();
}

absl::Status Read(const Json& json, const std::string& path, DiskProfile* out) {
  return Members(json, path)
      .Member("read_bytes_per_second", &out->read_bytes_per_second)
      .Member("write_bytes_per_second", &out->write_bytes_per_second)
      .Member("rates", &out->rates)
      .Member("compute_seconds_per_byte", &out->compute_seconds_per_byte)
      .Member("direct", &out->direct)
      .End();
}

absl::Status Read(const Json& json, const std::string& path, LinkProfile* out) {
  return Members(json, path)
      .Member("peer", &out->peer)
      .Member("bytes_per_second", &out->bytes_per_second)
      .Member("latency_seconds", &out->latency_seconds)
      .End();
}

absl::Status ReadProfile(const Json& json, MachineProfile* p) {
  int32_t version = 0;
  Members members(json, "");
  if (!json.is_object()) return members.End();
  // First: another version may have any keys.
  if (!json.contains("version")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "version: missing; this build reads ", MachineProfile::kVersion));
  }
  SLUICE_RETURN_IF_ERROR(Read(json["version"], "version", &version));
  if (version != MachineProfile::kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("version: ", version, " is not the one that this build ",
                     "reads, ", MachineProfile::kVersion));
  }
  return members.Member("version", &version)
      .Member("name", &p->name)
      .Member("machine", &p->machine)
      .Member("fingerprint", &p->fingerprint)
      .Member("device", &p->device)
      .Member("remarks", &p->remarks)
      .Member("device_memory_bytes", &p->device_memory_bytes)
      .Member("host_memory_bytes", &p->host_memory_bytes)
      .Member("disk_bytes", &p->disk_bytes)
      .Member("threads", &p->threads)
      .Member("host", &p->host)
      .Member("device_compute", &p->device_compute)
      .Member("host_to_device_bytes_per_second",
              &p->host_to_device_bytes_per_second)
      .Member("device_to_host_bytes_per_second",
              &p->device_to_host_bytes_per_second)
      .Member("disk", &p->disk)
      .Member("links", &p->links)
      .Member("step_seconds", &p->step_seconds)
      .End();
}

// Sees what the parser lets pass: of two members with the same key nlohmann
// keeps one without a word, and nesting has no bounds.
class Watch {
 public:
  // False to leave out what begins here.
  bool See(int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth > kMostDepth) {
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
  static constexpr int kMostDepth = 16;
  std::vector<std::set<std::string>> seen_;  // by level
  std::string error_;
};

}  // namespace

std::string ProfileToJson(const MachineProfile& profile) {
  std::string out;
  Print(ToJson(profile), 0, &out);
  out += "\n";
  return out;
}

absl::StatusOr<MachineProfile> ProfileFromJson(absl::string_view text) {
  if (text.size() > kMostProfileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the profile has ", text.size(), " bytes: more than ",
                     kMostProfileBytes));
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
    return absl::InvalidArgumentError(
        absl::StrCat("the profile is no JSON: ", e.what()));
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
