#include "runtime/trace/trace.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

constexpr size_t kFlushBytes = size_t{1} << 20;
constexpr int kProcess = 1;  // a trace has one, so that any id does

// `text` as a JSON string, quotes included.
std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false,
                                   nlohmann::json::error_handler_t::replace);
}

void AppendMetadata(std::string* out, const char* kind, size_t row,
                    const char* key, const std::string& value) {
  absl::StrAppend(out, R"({"ph":"M","name":")", kind, R"(","pid":)", kProcess,
                  R"(,"tid":)", row, R"(,"args":{")", key, "\":", value, "}}");
}

absl::Status FileError(const std::string& path, const char* action, int error) {
  return absl::Status(
      absl::ErrnoToStatusCode(error),
      absl::StrCat("trace file ", path, ": ", action, ": ", strerror(error)));
}

}  // namespace

void Tracer::AppendSpan(std::string* out, size_t row,
                        const TraceRow::Span& span) const {
  absl::StrAppendFormat(
      out,
      ",\n"
      R"({"ph":"X","pid":%d,"tid":%d,"name":"%s","cat":"%s","ts":%.3f,"dur":%.3f)",
      kProcess, row, span.name, span.category,
      static_cast<double>(span.start_ns - start_ns_) * 1e-3,
      static_cast<double>(span.end_ns - span.start_ns) * 1e-3);
  const char* separator = ",\"args\":{";
  const char* end = "}";
  for (const TraceArg& arg : span.args) {
    if (arg.key == nullptr) continue;
    absl::StrAppend(out, separator, "\"", arg.key, "\":", arg.value);
    separator = ",";
    end = "}}";
  }
  *out += end;
}

TraceRow::TraceRow(std::string name, size_t capacity)
    : name_(std::move(name)), capacity_(capacity), spans_(new Span[capacity]) {}

Tracer::Tracer(Options options)
    : options_(std::move(options)),
      start_ns_(TraceNow()),
      start_unix_us_(std::chrono::duration_cast<std::chrono::microseconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count()) {}

TraceRow* Tracer::AddRow(std::string name) {
  MutexLock lock(&mu_);
  rows_.push_back(
      std::make_unique<TraceRow>(std::move(name), options_.spans_per_row));
  return rows_.back().get();
}

uint64_t Tracer::dropped() const {
  MutexLock lock(&mu_);
  uint64_t dropped = 0;
  for (const auto& row : rows_) dropped += row->dropped();
  return dropped;
}

absl::Status Tracer::WriteJson(const std::string& path) const {
  std::vector<const TraceRow*> rows;
  {
    MutexLock lock(&mu_);
    for (const auto& row : rows_) rows.push_back(row.get());
  }
  const std::string part = path + ".part";
  std::FILE* file = std::fopen(part.c_str(), "we");
  if (file == nullptr) return FileError(path, "cannot be created", errno);

  std::string out;
  absl::StrAppend(&out, R"({"otherData":{"start_unix_us":)", start_unix_us_,
                  R"(,"dropped_spans":)", dropped(), "},\n\"traceEvents\":[\n");
  AppendMetadata(&out, "process_name", 0, "name",
                 Quoted(options_.process_name));
  for (size_t r = 0; r < rows.size(); ++r) {
    out += ",\n";
    AppendMetadata(&out, "thread_name", r + 1, "name", Quoted(rows[r]->name()));
    out += ",\n";
    AppendMetadata(&out, "thread_sort_index", r + 1, "sort_index",
                   absl::StrCat(r));
  }
  // The first error, as an errno.
  int error = 0;
  const auto flush = [&] {
    if (error == 0 &&
        std::fwrite(out.data(), 1, out.size(), file) != out.size()) {
      error = errno;
    }
    out.clear();
  };
  for (size_t r = 0; r < rows.size(); ++r) {
    const size_t size = rows[r]->size();
    for (size_t i = 0; i < size; ++i) {
      AppendSpan(&out, r + 1, rows[r]->spans_[i]);
      if (out.size() >= kFlushBytes) flush();
    }
  }
  out += "\n]}\n";
  flush();
  if (std::fclose(file) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  std::remove(part.c_str());
  return FileError(path, "cannot be written", error);
}

}  // namespace sluice
