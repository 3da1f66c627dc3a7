#pragma once

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sluice {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets the lowest level that this process logs: "debug", "info", "warning" or
// "error". Returns false if `level` is none of these.
bool SetLogLevel(absl::string_view level);

// Writes one line to stderr: time, level, thread, message. Thread-safe. Control
// characters are escaped and further lines indented, so that quoted text can
// neither steer a terminal nor pass for another message. Messages carry their
// context as key=value ("stage=1 job=job_17"); never put secrets or prompt text
// in one.
void Log(LogLevel level, absl::string_view message);

// Log messages of parts as absl::StrCat takes them.
template <typename... Parts>
void LogDebug(const Parts&... message) {
  Log(LogLevel::kDebug, absl::StrCat(message...));
}
template <typename... Parts>
void LogInfo(const Parts&... message) {
  Log(LogLevel::kInfo, absl::StrCat(message...));
}
template <typename... Parts>
void LogWarning(const Parts&... message) {
  Log(LogLevel::kWarning, absl::StrCat(message...));
}
template <typename... Parts>
void LogError(const Parts&... message) {
  Log(LogLevel::kError, absl::StrCat(message...));
}

}  // namespace sluice
