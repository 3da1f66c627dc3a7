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

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

bool SetLogLevel(absl::string_view level) {
  if (level == "debug") {
    Logger().set_level(spdlog::level::debug);
  } else if (level == "info") {
    Logger().set_level(spdlog::level::info);
  } else if (level == "warning") {
    Logger().set_level(spdlog::level::warn);
  } else if (level == "error") {
    Logger().set_level(spdlog::level::err);
  } else {
    return false;
  }
  return true;
}

void Log(LogLevel level, absl::string_view message) {
  const std::string text = EscapeLinesForTerminal(message);
  Logger().log(ToSpdlog(level),
               spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace sluice
