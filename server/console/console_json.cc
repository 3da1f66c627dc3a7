#include "server/console/console_json.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/version.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Messages of ours always have a JSON form.
std::string MessageJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json, options)
           .ok()) {
    return "null";
  }
  return json;
}

template <typename Events>
Json EventsJson(const Events& events) {
  Json list = Json::array();
  for (const JobEvent& event : events) {
    list.push_back({{"time_us", event.time_us},
                    {"kind", event.kind},
                    {"text", event.text}});
  }
  return list;
}

}  // namespace

std::string SessionJson(const Caller& caller, const std::string& problem) {
  return Dump({{"name", caller.name},
               {"tenant", caller.tenant},
               {"read", caller.read},
               {"submit", caller.submit},
               {"admin", caller.admin},
               {"version", BuildVersion()},
               {"problem", problem}});
}

std::string JobJson(const v1::Job& job, const LiveJobs::Pace& pace) {
  return absl::StrCat(
      "{\"job\":", MessageJson(job),
      ",\"tokens_per_second\":", pace.generation_tokens_per_second,
      ",\"seconds_left\":",
      pace.seconds_left ? absl::StrCat(*pace.seconds_left) : "null", "}");
}

std::string JobsJson(const std::vector<std::string>& jobs,
                     const std::string& next_page_token) {
  return absl::StrCat("{\"jobs\":[", absl::StrJoin(jobs, ","),
                      "],\"next_page_token\":", Dump(next_page_token), "}");
}

std::string ClusterJson(v1::ClusterState state) {
  for (v1::WorkerInfo& worker : *state.mutable_workers()) {
    worker.clear_profile();
  }
  return MessageJson(state);
}

std::string QueueJson(const QueueHistory& history, int64_t after_us) {
  Json samples = Json::array();
  for (const QueueSample& s : history.samples(after_us)) {
    samples.push_back({s.time_us, s.prompt_tokens, s.generation_tokens,
                       s.running, s.waiting});
  }
  return Dump({{"samples", std::move(samples)},
               {"events", EventsJson(history.events())}});
}

std::string TimelineJson(const JobHistory& history) {
  Json samples = Json::array();
  for (const JobSample& s : history.samples()) {
    samples.push_back(
        {s.time_us, s.prompt_tokens, s.generation_tokens, s.ended, s.running});
  }
  return Dump({{"samples", std::move(samples)},
               {"events", EventsJson(history.events())}});
}

std::string ErrorsJson(const std::vector<JobManager::FailedRequest>& errors,
                       size_t limit) {
  Json list = Json::array();
  const size_t count = std::min(limit, errors.size());
  for (size_t i = 0; i < count; ++i) {
    list.push_back({{"index", errors[i].index},
                    {"custom_id", errors[i].custom_id},
                    {"code", errors[i].code},
                    {"message", errors[i].message}});
  }
  return Dump({{"errors", std::move(list)},
               {"next_from", count < errors.size() ? Json(errors[count].index)
                                                   : Json(nullptr)}});
}

}  // namespace sluice
