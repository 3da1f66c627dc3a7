#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets the lowest level that this process logs: "debug", "info", "warning" or
// "error". Returns false if `level` is none of these.
bool SetLogLevel(absl::string_view level);

// Sets how this process writes its messages: "text", or "json", where
// `component`, the program, is a field of each. Returns false if `format` is
// neither. To be called before other threads log, as SetLogWorker.
bool SetLogFormat(absl::string_view format, absl::string_view component);
// Whether messages are JSON.
bool LogsJson();
// Sets the "worker" of all JSON messages that name none: this process is it.
void SetLogWorker(absl::string_view name);

// What a message is about: in text "job=job_17", and a field of its own in
// JSON.
struct LogField {
  std::string name, value;
};
inline LogField LogJob(absl::string_view id) {
  return {"job", std::string(id)};
}
inline LogField LogEpoch(int64_t epoch) {
  return {"epoch", absl::StrCat(epoch)};
}
inline LogField LogWorker(absl::string_view name) {
  return {"worker", std::string(name)};
}

// Writes one message to stderr. Thread-safe. As text, a line of time, level,
// thread and message: control characters are escaped and further lines
// indented, so that quoted text can neither steer a terminal nor pass for
// another message. As JSON, an object on a line: time, severity, thread,
// component, `fields`, message. Messages carry further context as key=value
// ("stage=1"); never put secrets or prompt text in one.
void Log(LogLevel level, absl::string_view message,
         absl::Span<const LogField> fields = {});

namespace log_internal {

struct Message {
  std::string text;
  std::vector<LogField> fields;

  void Add(const LogField& field) {
    absl::StrAppend(&text, field.name, "=", field.value);
    fields.push_back(field);
  }
  template <typename Part>
  void Add(const Part& part) {
    absl::StrAppend(&text, part);
  }
};

template <typename... Parts>
void LogParts(LogLevel level, const Parts&... parts) {
  Message message;
  (message.Add(parts), ...);
  Log(level, message.text, message.fields);
}

}  // namespace log_internal

// Log messages of parts: LogFields, and what absl::StrCat takes.
template <typename... Parts>
void LogDebug(const Parts&... message) {
  log_internal::LogParts(LogLevel::kDebug, message...);
}
template <typename... Parts>
void LogInfo(const Parts&... message) {
  log_internal::LogParts(LogLevel::kInfo, message...);
}
template <typename... Parts>
void LogWarning(const Parts&... message) {
  log_internal::LogParts(LogLevel::kWarning, message...);
}
template <typename... Parts>
void LogError(const Parts&... message) {
  log_internal::LogParts(LogLevel::kError, message...);
}

}  // namespace sluice
