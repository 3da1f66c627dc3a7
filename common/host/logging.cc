#include "common/host/logging.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <string>

#include "common/text/text.h"

namespace sluice {
namespace {

spdlog::logger& Logger() {
  // Leaked on purpose: threads may log while the process exits.
  static spdlog::logger* const logger = [] {
    auto* l = new spdlog::logger(
        "sluice", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    l->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %L %t %v",
                   spdlog::pattern_time_type::utc);
    l->flush_on(spdlog::level::trace);
    return l;
  }();
  return *logger;
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

void Log(LogLevel level, absl::string_view message) {
  const std::string text = EscapeLinesForTerminal(message);
  Logger().log(kLevels[static_cast<size_t>(level)].level,
               spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace sluice
