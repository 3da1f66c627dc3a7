#include "server/cli/jobs/timeline.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

nlohmann::json Written(const v1::Trace& trace) {
  v1::Job job;
  job.set_id("job_1");
  std::string text;
  const absl::Status status =
      WriteTimeline(job, trace, [&](absl::string_view data) {
        absl::StrAppend(&text, data);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return nlohmann::json::parse(text);
}

v1::Trace::Process* Add(v1::Trace* trace, const std::string& worker) {
  v1::Trace::Process* const process = trace->add_processes();
  process->set_worker(worker);
  return process;
}

void AddSpan(v1::Trace::Process* process, v1::Span::Kind kind, int64_t start_ns,
             int64_t duration_ns) {
  v1::Span* const span = process->add_spans();
  span->set_kind(kind);
  span->set_start_ns(start_ns);
  span->set_duration_ns(duration_ns);
}

// The spans' names by their rows' names, in order.
std::vector<std::pair<std::string, std::string>> Spans(
    const nlohmann::json& trace) {
  std::vector<std::pair<std::string, std::string>> spans;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    std::string process;
    std::string row;
    for (const nlohmann::json& name : trace["traceEvents"]) {
      if (name["ph"] != "M" || name["pid"] != event["pid"]) continue;
      if (name["name"] == "process_name") process = name["args"]["name"];
      if (name["name"] == "thread_name" && name["tid"] == event["tid"]) {
        row = name["args"]["name"];
      }
    }
    spans.emplace_back(absl::StrCat(process, ": ", row), event["name"]);
  }
  return spans;
}

TEST(TimelineTest, StepsOfABlockThatOverlapHaveRowsOfTheirOwn) {
  v1::Trace trace;
  trace.set_begin_ns(1'000);
  trace.set_end_ns(9'000);
  v1::Trace::Process* const coordinator = Add(&trace, "");
  AddSpan(coordinator, v1::Span::KIND_STEP, 2'000, 2'000);
  AddSpan(coordinator, v1::Span::KIND_STEP, 3'000, 2'000);
  AddSpan(coordinator, v1::Span::KIND_STEP, 4'000, 500);
  const nlohmann::json written = Written(trace);
  EXPECT_THAT(Spans(written),
              ElementsAre(Pair("coordinator: job", "job"),
                          Pair("coordinator: pipeline 0 block 0", "step"),
                          Pair("coordinator: pipeline 0 block 0 (2)", "step"),
                          Pair("coordinator: pipeline 0 block 0", "step")));
}

TEST(TimelineTest, TimesAreMicrosecondsOfTheJob) {
  v1::Trace trace;
  trace.set_begin_ns(1'000);
  trace.set_end_ns(9'000);
  AddSpan(Add(&trace, "a"), v1::Span::KIND_LOAD, 500, 1'250);
  const nlohmann::json written = Written(trace);
  const nlohmann::json& load = written["traceEvents"].back();
  EXPECT_EQ(load["name"], "load");
  EXPECT_EQ(load["ts"], -0.5);  // it had begun before
  EXPECT_EQ(load["dur"], 1.25);
  EXPECT_EQ(load["args"], (nlohmann::json{{"epoch", 0}, {"stage", 0}}));
}

TEST(TimelineTest, WorkersComeByName) {
  v1::Trace trace;
  v1::Trace::Process* const late = Add(&trace, "b\xff\"");
  AddSpan(late, v1::Span::KIND_SEND, 10, 1);
  v1::Trace::Process* const early = Add(&trace, "a");
  AddSpan(early, v1::Span::KIND_WAIT, 12, 2);
  early->set_clock_offset_ns(-2'000);
  // More of it came with another page, and a longer span begins as early.
  v1::Trace::Process* const more = Add(&trace, "a");
  AddSpan(more, v1::Span::KIND_COMPUTE, 12, 5);
  more->set_clock_offset_ns(-3'000);
  const nlohmann::json written = Written(trace);
  EXPECT_THAT(Spans(written),
              ElementsAre(Pair("coordinator: job", "job"),
                          Pair("worker a: compute", "compute"),
                          Pair("worker a: compute", "wait"),
                          Pair("worker b\xef\xbf\xbd\": send", "send")));
  EXPECT_EQ(written["otherData"]["clock_offsets_us"]["a"], -2.0);
}

TEST(TimelineTest, AnErrorOfTheFileIsReturned) {
  const absl::Status status = WriteTimeline({}, {}, [](absl::string_view) {
    return absl::ResourceExhaustedError("full");
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace sluice
