#include "common/host/logging.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/text/text.h"

namespace sluice {
namespace {

constexpr char kTextPattern[] = "%Y-%m-%dT%H:%M:%S.%eZ %L %t %v";

spdlog::logger& Logger() {
  // Leaked on purpose: threads may log while the process exits.
  static spdlog::logger* const logger = [] {
    auto* l = new spdlog::logger(
        "sluice", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    l->set_pattern(kTextPattern, spdlog::pattern_time_type::utc);
    l->flush_on(spdlog::level::trace);
    return l;
  }();
  return *logger;
}

// What JSON messages have beside their own fields. Set before threads log.
struct JsonSettings {
  bool on = false;
  std::string component, worker;
};
JsonSettings& Json() {
  // Leaked on purpose, as the logger.
  static auto* const settings = new JsonSettings();
  return *settings;
}

void AppendField(absl::string_view name, absl::string_view value,
                 std::string* out) {
  absl::StrAppend(out, out->empty() ? "" : ",", QuoteJson(name), ":",
                  QuoteJson(value));
}

// The members of a JSON message that the logger's pattern leaves out.
std::string JsonMembers(absl::string_view message,
                        absl::Span<const LogField> fields) {
  std::string members;
  AppendField("component", Json().component, &members);
  std::vector<absl::string_view> names;
  const auto add = [&](absl::string_view name, absl::string_view value) {
    // The first of a name counts: an object has each once.
    if (std::find(names.begin(), names.end(), name) != names.end()) return;
    names.push_back(name);
    AppendField(name, value, &members);
  };
  for (const LogField& field : fields) add(field.name, field.value);
  if (!Json().worker.empty()) add("worker", Json().worker);
  AppendField("message", message, &members);
  return EscapeLineEnds(EscapeJsonForTerminal(members));
}

// The levels, in LogLevel's order.
constexpr struct {
  absl::string_view name;
  spdlog::level::level_enum level;
} kLevels[] = {{"debug", spdlog::level::debug},
               {"info", spdlog::level::info},
               {"warning", spdlog::level::warn},
               {"error", spdlog::level::err}};

}  // namespace

bool SetLogLevel(absl::string_view level) {
  for (const auto& known : kLevels) {
    if (known.name != level) continue;
    Logger().set_level(known.level);
    return true;
  }
  return false;
}

bool SetLogFormat(absl::string_view format, absl::string_view component) {
  if (format != "text" && format != "json") return false;
  Json().on = format == "json";
  Json().component = std::string(component);
  Logger().set_pattern(
      Json().on ? "{\"time\":\"%Y-%m-%dT%H:%M:%S.%eZ\",\"severity\":\"%l\","
                  "\"thread\":%t,%v}"
                : kTextPattern,
      spdlog::pattern_time_type::utc);
  return true;
}

bool LogsJson() { return Json().on; }

void SetLogWorker(absl::string_view name) { Json().worker = std::string(name); }

void Log(LogLevel level, absl::string_view message,
         absl::Span<const LogField> fields) {
  const std::string text = Json().on ? JsonMembers(message, fields)
                                     : EscapeLinesForTerminal(message);
  Logger().log(kLevels[static_cast<size_t>(level)].level,
               spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace sluice
