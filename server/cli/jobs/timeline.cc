#include "server/cli/jobs/timeline.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

using json = nlohmann::ordered_json;
using WriteTo = std::function<absl::Status(absl::string_view)>;

constexpr int kCoordinator = 1;  // its process
constexpr size_t kTimelinePiece = size_t{1} << 16;

// The spans of one process, in the order in which they began.
struct ProcessSpans {
  std::vector<const v1::Span*> spans;
  int64_t clock_offset_ns = INT64_MIN;
};

std::string Text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

const char* NameOf(v1::Span::Kind kind) {
  switch (kind) {
    case v1::Span::KIND_STEP:
      return "step";
    case v1::Span::KIND_LOAD:
      return "load";
    case v1::Span::KIND_COMPUTE:
      return "compute";
    case v1::Span::KIND_WAIT:
      return "wait";
    case v1::Span::KIND_BLOCKED:
      return "blocked";
    case v1::Span::KIND_SEND:
      return "send";
    default:
      return "other";  // a newer coordinator's
  }
}

json Arguments(const v1::Span& span) {
  json args = {{"epoch", span.epoch()}};
  const v1::Span::Kind kind = span.kind();
  if (kind != v1::Span::KIND_STEP) args["stage"] = span.stage();
  if (kind == v1::Span::KIND_LOAD) return args;
  args["block"] = span.block();
  args["step"] = span.step();
  if (kind == v1::Span::KIND_STEP) {
    args["pipeline"] = span.pipeline();
    args["prompt_tokens"] = span.prompt_tokens();
  }
  if (kind == v1::Span::KIND_STEP || kind == v1::Span::KIND_COMPUTE) {
    args["tokens"] = span.tokens();
  } else {
    args["micro_batch"] = span.micro_batch();
  }
  return args;
}

std::map<std::string, ProcessSpans> ByWorker(const v1::Trace& trace) {
  std::map<std::string, ProcessSpans> processes;
  for (const v1::Trace::Process& process : trace.processes()) {
    ProcessSpans& all = processes[process.worker()];
    all.clock_offset_ns =
        std::max(all.clock_offset_ns, process.clock_offset_ns());
    for (const v1::Span& span : process.spans()) all.spans.push_back(&span);
  }
  for (auto& [worker, process] : processes) {
    // Of two that begin together, the outer one comes first.
    std::stable_sort(process.spans.begin(), process.spans.end(),
                     [](const v1::Span* a, const v1::Span* b) {
                       return a->start_ns() != b->start_ns()
                                  ? a->start_ns() < b->start_ns()
                                  : a->duration_ns() > b->duration_ns();
                     });
  }
  return processes;
}

// Writes events and gives rows their numbers.
class EventWriter {
 public:
  EventWriter(int64_t begin_ns, const WriteTo& write)
      : begin_ns_(begin_ns), write_(write) {}

  void Begin(const json& other_data) {
    absl::StrAppend(&out_, R"({"displayTimeUnit":"ms","otherData":)",
                    Text(other_data), ",\"traceEvents\":[\n");
  }

  absl::Status End() {
    out_ += "\n]}\n";
    return Flush();
  }

  absl::Status Process(int pid, const std::string& name) {
    SLUICE_RETURN_IF_ERROR(Name(pid, 0, "process_name", name));
    return Event({{"ph", "M"},
                  {"pid", pid},
                  {"tid", 0},
                  {"name", "process_sort_index"},
                  {"args", {{"sort_index", pid}}}});
  }

  // The row of that name, which is made if need be.
  absl::StatusOr<int> Row(int pid, const std::string& name) {
    const auto [row, is_new] =
        rows_.try_emplace({pid, name}, static_cast<int>(rows_.size()) + 1);
    if (is_new) {
      SLUICE_RETURN_IF_ERROR(Name(pid, row->second, "thread_name", name));
    }
    return row->second;
  }

  absl::Status Span(int pid, int row, const char* name, int64_t start_ns,
                    int64_t duration_ns, json args) {
    return Event({{"ph", "X"},
                  {"pid", pid},
                  {"tid", row},
                  {"name", name},
                  {"cat", name},
                  {"ts", static_cast<double>(start_ns - begin_ns_) * 1e-3},
                  {"dur", static_cast<double>(duration_ns) * 1e-3},
                  {"args", std::move(args)}});
  }

 private:
  absl::Status Name(int pid, int tid, const char* kind,
                    const std::string& name) {
    return Event({{"ph", "M"},
                  {"pid", pid},
                  {"tid", tid},
                  {"name", kind},
                  {"args", {{"name", name}}}});
  }

  absl::Status Event(const json& event) {
    absl::StrAppend(&out_, std::exchange(any_, true) ? ",\n" : "", Text(event));
    return out_.size() < kTimelinePiece ? absl::OkStatus() : Flush();
  }

  absl::Status Flush() { return write_(std::exchange(out_, "")); }

  const int64_t begin_ns_;
  const WriteTo& write_;
  std::string out_;
  bool any_ = false;
  std::map<std::pair<int, std::string>, int> rows_;
};

// Writes the coordinator's steps. Those of a block may overlap, which those of
// a row must not: a block has as many rows as it has steps at the same time.
absl::Status WriteSteps(const std::vector<const v1::Span*>& steps,
                        EventWriter* events) {
  std::map<std::pair<int32_t, int32_t>, std::vector<int64_t>> ends;
  for (const v1::Span* const step : steps) {
    std::vector<int64_t>& rows = ends[{step->pipeline(), step->block()}];
    const auto free = std::find_if(
        rows.begin(), rows.end(),
        [&](int64_t end_ns) { return end_ns <= step->start_ns(); });
    const auto n = static_cast<size_t>(free - rows.begin());
    if (free == rows.end()) rows.push_back(0);
    rows[n] = step->start_ns() + step->duration_ns();
    const std::string name =
        absl::StrCat("pipeline ", step->pipeline(), " block ", step->block(),
                     n == 0 ? "" : absl::StrCat(" (", n + 1, ")"));
    SLUICE_ASSIGN_OR_RETURN(const int row, events->Row(kCoordinator, name));
    SLUICE_RETURN_IF_ERROR(events->Span(kCoordinator, row, NameOf(step->kind()),
                                        step->start_ns(), step->duration_ns(),
                                        Arguments(*step)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteTimeline(const v1::Job& job, const v1::Trace& trace,
                           const WriteTo& write) {
  const std::map<std::string, ProcessSpans> processes = ByWorker(trace);
  json offsets = json::object();
  for (const auto& [worker, process] : processes) {
    if (worker.empty()) continue;
    offsets[worker] = static_cast<double>(process.clock_offset_ns) * 1e-3;
  }
  EventWriter events(trace.begin_ns(), write);
  events.Begin({{"job", job.id()},
                {"created_unix_us", job.created_at().seconds() * 1'000'000 +
                                        job.created_at().nanos() / 1000},
                {"clock_offsets_us", offsets},
                {"truncated", trace.truncated()},
                {"settled", trace.settled()},
                {"dropped_spans", trace.dropped()}});
  SLUICE_RETURN_IF_ERROR(events.Process(kCoordinator, "coordinator"));
  SLUICE_ASSIGN_OR_RETURN(const int jobs, events.Row(kCoordinator, "job"));
  SLUICE_RETURN_IF_ERROR(
      events.Span(kCoordinator, jobs, "job", trace.begin_ns(),
                  trace.end_ns() - trace.begin_ns(),
                  {{"id", job.id()}, {"requests", job.counts().total()}}));
  int pid = kCoordinator;
  for (const auto& [worker, process] : processes) {
    if (worker.empty()) {
      SLUICE_RETURN_IF_ERROR(WriteSteps(process.spans, &events));
      continue;
    }
    ++pid;
    SLUICE_RETURN_IF_ERROR(
        events.Process(pid, absl::StrCat("worker ", worker)));
    for (const v1::Span* const span : process.spans) {
      const bool sends = span->kind() == v1::Span::KIND_SEND;
      SLUICE_ASSIGN_OR_RETURN(const int row,
                              events.Row(pid, sends ? "send" : "compute"));
      SLUICE_RETURN_IF_ERROR(events.Span(pid, row, NameOf(span->kind()),
                                         span->start_ns(), span->duration_ns(),
                                         Arguments(*span)));
    }
  }
  return events.End();
}

}  // namespace sluice
