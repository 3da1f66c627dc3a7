#include "runtime/trace/trace.h"

#include <unistd.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/threads/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TraceTest : public ::testing::Test {
 protected:
  void TearDown() override { unlink(path_.c_str()); }
  nlohmann::json Written(const Tracer& tracer) {
    const absl::Status status = tracer.WriteJson(path_);
    EXPECT_TRUE(status.ok()) << status;
    std::ifstream file(path_);
    return nlohmann::json::parse(file);
  }
  const std::string path_ =
      absl::StrCat(::testing::TempDir(), "/trace-", getpid(), ".json");
};

std::vector<nlohmann::json> Events(const nlohmann::json& trace,
                                   const std::string& phase) {
  std::vector<nlohmann::json> events;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] == phase) events.push_back(event);
  }
  return events;
}

TEST_F(TraceTest, NamesProcessAndRows) {
  Tracer tracer({.process_name = "worker \"0\""});
  tracer.AddRow("compute");
  tracer.AddRow("disk read \\ \xff");
  const nlohmann::json trace = Written(tracer);

  std::vector<std::string> names;
  for (const nlohmann::json& event : Events(trace, "M")) {
    EXPECT_EQ(event["pid"], 1);
    if (event["args"].contains("name")) {
      names.push_back(absl::StrCat(event["name"].get<std::string>(), "=",
                                   event["args"]["name"].get<std::string>()));
    }
  }
  EXPECT_THAT(names,
              ElementsAre("process_name=worker \"0\"", "thread_name=compute",
                          "thread_name=disk read \\ \xef\xbf\xbd"));
}

TEST_F(TraceTest, SpansKeepTimesAndArguments) {
  Tracer tracer({});
  TraceRow* row = tracer.AddRow("h2d");
  const int64_t start = TraceNow();
  row->Add("copy", "weights", start, start + 1500,
           WithArg({{{"layer", 3}}}, "bytes", -5));
  row->Add("copy", "weights", start + 1500, start + 1500);
  const std::vector<nlohmann::json> spans = Events(Written(tracer), "X");

  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0]["name"], "copy");
  EXPECT_EQ(spans[0]["cat"], "weights");
  EXPECT_EQ(spans[0]["dur"], 1.5);
  EXPECT_GE(spans[0]["ts"].get<double>(), 0);
  EXPECT_EQ(spans[0]["args"], (nlohmann::json{{"layer", 3}, {"bytes", -5}}));
  EXPECT_FALSE(spans[1].contains("args"));
  EXPECT_NEAR(spans[1]["ts"].get<double>() - spans[0]["ts"].get<double>(), 1.5,
              2e-3);
}

TEST_F(TraceTest, ScopesOfEachThreadNest) {
  Tracer tracer({});
  std::vector<Thread> threads;
  for (int t = 0; t < 3; ++t) {
    TraceRow* row = tracer.AddRow(absl::StrCat("compute ", t));
    threads.emplace_back("compute", [row] {
      for (int layer = 0; layer < 50; ++layer) {
        const TraceScope outer(row, "layer", "compute", {{{"layer", layer}}});
        for (int k = 0; k < 2; ++k) {
          const TraceScope inner(row, "micro-batch", "compute");
        }
      }
    });
  }
  threads.clear();

  std::map<int, std::vector<std::pair<double, double>>> rows;
  for (const nlohmann::json& span : Events(Written(tracer), "X")) {
    const double start = span["ts"];
    const double end = start + span["dur"].get<double>();
    for (const auto& [other, other_end] : rows[span["tid"]]) {
      // The file rounds to nanoseconds' thousandths of a microsecond.
      constexpr double kRounding = 2e-3;
      const bool apart =
          start >= other_end - kRounding || end <= other + kRounding;
      const bool within =
          start >= other - kRounding && end <= other_end + kRounding;
      const bool around =
          other >= start - kRounding && other_end <= end + kRounding;
      EXPECT_TRUE(apart || within || around);
    }
    rows[span["tid"]].emplace_back(start, end);
  }
  ASSERT_EQ(rows.size(), 3u);
  for (const auto& [row, spans] : rows) EXPECT_EQ(spans.size(), 150u);
}

TEST_F(TraceTest, AFullRowCountsWhatItDrops) {
  Tracer tracer({.spans_per_row = 2});
  TraceRow* full = tracer.AddRow("full");
  TraceRow* other = tracer.AddRow("other");
  for (int i = 0; i < 5; ++i) full->Add("a", "b", 0, 1);
  other->Add("a", "b", 0, 1);

  EXPECT_EQ(full->dropped(), 3u);
  EXPECT_EQ(tracer.dropped(), 3u);
  const nlohmann::json trace = Written(tracer);
  EXPECT_EQ(Events(trace, "X").size(), 3u);
  EXPECT_EQ(trace["otherData"]["dropped_spans"], 3);
}

TEST_F(TraceTest, MayBeWrittenWhileRowsGrow) {
  Tracer tracer({.spans_per_row = 20'000});
  TraceRow* row = tracer.AddRow("busy");
  Thread writer("writer", [row] {
    for (int64_t i = 0; i < 20'000; ++i) row->Add("a", "b", i, i + 1);
  });
  for (int i = 0; i < 3; ++i) Written(tracer);
  writer.Join();
  EXPECT_EQ(Events(Written(tracer), "X").size(), 20'000u);
}

TEST_F(TraceTest, WithoutATracerNothingHappens) {
  TraceRow* row = AddTraceRow(nullptr, "none");
  EXPECT_EQ(row, nullptr);
  const TraceScope scope(row, "a", "b");
}

TEST_F(TraceTest, ErrorsNameTheFile) {
  const Tracer tracer({});
  const absl::Status missing = tracer.WriteJson("/no/such/dir/trace.json");
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("/no/such/dir/trace.json"));
}

TEST_F(TraceTest, AFullDiskIsAnErrorAndLeavesTheOldFile) {
  const Tracer tracer({});
  ASSERT_TRUE(tracer.WriteJson(path_).ok());
  // The part that would replace the file goes to a device that is full.
  const std::string part = path_ + ".part";
  ASSERT_EQ(symlink("/dev/full", part.c_str()), 0);
  const absl::Status status = tracer.WriteJson(path_);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(), HasSubstr(path_));
  EXPECT_NE(access(part.c_str(), F_OK), 0);
  std::ifstream file(path_);
  EXPECT_TRUE(nlohmann::json::parse(file).contains("traceEvents"));
}

}  // namespace
}  // namespace sluice
