#pragma once

#include "absl/strings/string_view.h"

namespace sluice {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets the process's least level shown, from "debug", "info", "warning" or
// "error". False if `level` is none of these.
bool SetLogLevel(absl::string_view level);

// Writes one line to stderr: time, level, thread, message. Thread-safe. What a
// message quotes from outside can neither steer a terminal nor pass for another
// line: it is escaped, and further lines are indented.
// Messages carry their context as key=value
// ("stage=1 job=job_17"); never put secrets or prompt text in one.
void Log(LogLevel level, absl::string_view message);

inline void LogDebug(absl::string_view message) {
  Log(LogLevel::kDebug, message);
}
inline void LogInfo(absl::string_view message) {
  Log(LogLevel::kInfo, message);
}
inline void LogWarning(absl::string_view message) {
  Log(LogLevel::kWarning, message);
}
inline void LogError(absl::string_view message) {
  Log(LogLevel::kError, message);
}

}  // namespace sluice
