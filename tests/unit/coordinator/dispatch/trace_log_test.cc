#include "coordinator/dispatch/trace_log.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr WorkerId kFirst{1};
constexpr WorkerId kSecond{2};

v1::Span SpanOf(int64_t start_ns, int64_t duration_ns, int64_t step = 1) {
  v1::Span span;
  span.set_kind(v1::Span::KIND_COMPUTE);
  span.set_start_ns(start_ns);
  span.set_duration_ns(duration_ns);
  span.set_step(step);
  return span;
}

v1::Heartbeat HeartbeatAt(int64_t now_ns, const std::vector<v1::Span>& spans) {
  v1::Heartbeat heartbeat;
  heartbeat.set_now_ns(now_ns);
  for (const v1::Span& span : spans) *heartbeat.add_spans() = span;
  return heartbeat;
}

// The starts of a worker's spans; "" is the coordinator.
std::vector<int64_t> StartsOf(const v1::Trace& trace,
                              const std::string& worker) {
  std::vector<int64_t> starts;
  for (const v1::Trace::Process& process : trace.processes()) {
    if (process.worker() != worker) continue;
    for (const v1::Span& span : process.spans()) {
      starts.push_back(span.start_ns());
    }
  }
  return starts;
}

class TraceLogTest : public testing::Test {
 protected:
  // The coordinator's clock shows `at_ns` when the heartbeat comes.
  void Hear(WorkerId id, const std::string& worker, int64_t at_ns,
            v1::Heartbeat heartbeat) {
    log_.TakeHeartbeat(id, worker, absl::Nanoseconds(at_ns), &heartbeat);
    EXPECT_EQ(heartbeat.spans_size(), 0);
  }
  void Step(int64_t sent_ns, int64_t done_ns) {
    log_.AddStep(v1::Span(), absl::Nanoseconds(sent_ns),
                 absl::Nanoseconds(done_ns));
  }
  v1::Trace Read(int64_t begin_ns, int64_t end_ns, int64_t after = 0,
                 size_t max_spans = TraceLog::kPageSpans) {
    return log_.Read(absl::Nanoseconds(begin_ns), absl::Nanoseconds(end_ns),
                     after, max_spans);
  }

  TraceLog log_{absl::Nanoseconds(1000), 4};
};

TEST_F(TraceLogTest, BringsAWorkersTimesToTheCoordinatorsClock) {
  // The worker's clock is 900,000 ns ahead; ways take 70, 20 and 50 ns.
  Hear(kFirst, "a", 5'000, HeartbeatAt(904'930, {}));
  Hear(kFirst, "a", 6'000, HeartbeatAt(905'980, {}));
  Hear(kFirst, "a", 7'000, HeartbeatAt(906'950, {SpanOf(906'100, 300)}));
  const v1::Trace trace = Read(1'000, 10'000);
  EXPECT_THAT(StartsOf(trace, "a"), ElementsAre(6'120));  // 20 ns late
  EXPECT_EQ(trace.processes(0).clock_offset_ns(), -899'980);
}

TEST_F(TraceLogTest, OldHeartbeatsDoNotCountForTheOffset) {
  Hear(kFirst, "a", 2'000, HeartbeatAt(2'000, {}));
  // From now on the worker's clock is 100 ns behind.
  for (size_t i = 1; i <= TraceLog::kOffsetSamples; ++i) {
    const auto now_ns = static_cast<int64_t>(2'000 + 1'000 * i);
    Hear(kFirst, "a", now_ns + 100, HeartbeatAt(now_ns, {}));
  }
  Hear(kFirst, "a", 50'100, HeartbeatAt(50'000, {SpanOf(40'000, 1)}));
  EXPECT_THAT(StartsOf(Read(1'000, 60'000), "a"), ElementsAre(40'100));
}

TEST_F(TraceLogTest, GivesWhatOverlapsTheTime) {
  Step(1'000, 2'000);
  Step(2'500, 3'000);
  Step(3'500, 5'000);
  Step(5'500, 6'000);
  const v1::Trace trace = Read(2'600, 4'000);
  EXPECT_THAT(StartsOf(trace, ""), ElementsAre(2'500, 3'500));
  EXPECT_EQ(trace.processes(0).spans(0).kind(), v1::Span::KIND_STEP);
  EXPECT_EQ(trace.begin_ns(), 2'600);
  EXPECT_EQ(trace.end_ns(), 4'000);
}

TEST_F(TraceLogTest, KeepsTheNewestAndSaysWhatIsMissing) {
  for (int64_t i = 1; i <= 4; ++i) Step(i * 1'000, i * 1'000 + 500);
  EXPECT_FALSE(Read(1'000, 9'000).truncated());
  EXPECT_TRUE(Read(999, 9'000).truncated());  // before the log began
  Step(5'000, 5'500);
  EXPECT_TRUE(Read(1'400, 9'000).truncated());
  const v1::Trace trace = Read(1'500, 9'000);
  EXPECT_FALSE(trace.truncated());
  EXPECT_THAT(StartsOf(trace, ""), ElementsAre(2'000, 3'000, 4'000, 5'000));
}

TEST_F(TraceLogTest, PagesHoldEachSpanOnce) {
  Step(1'000, 1'100);
  Hear(kFirst, "a", 2'000, HeartbeatAt(2'000, {SpanOf(1'200, 10)}));
  Step(1'300, 1'400);
  std::vector<int64_t> starts;
  int64_t after = 0;
  int pages = 0;
  do {
    const v1::Trace page = Read(0, 9'000, after, 1);
    for (const v1::Trace::Process& process : page.processes()) {
      for (const v1::Span& span : process.spans()) {
        starts.push_back(span.start_ns());
      }
    }
    after = page.next_after();
    ++pages;
  } while (after > 0);
  EXPECT_EQ(pages, 3);
  EXPECT_THAT(starts, ElementsAre(1'000, 1'200, 1'300));
  EXPECT_THAT(Read(0, 9'000, INT64_MAX).processes(), IsEmpty());
  EXPECT_EQ(StartsOf(Read(0, 9'000, INT64_MIN), "").size(), 2u);
}

TEST_F(TraceLogTest, IsSettledWhenAllAttachedWorkersHaveTold) {
  EXPECT_TRUE(Read(1'000, 5'000).settled());
  Hear(kFirst, "a", 6'000, HeartbeatAt(6'000, {}));
  Hear(kSecond, "b", 4'000, HeartbeatAt(4'000, {}));
  EXPECT_FALSE(Read(1'000, 5'000).settled());
  Hear(kSecond, "b", 5'000, HeartbeatAt(5'000, {SpanOf(4'100, 1)}));
  EXPECT_TRUE(Read(1'000, 5'000).settled());
  Hear(kFirst, "a", 7'000, HeartbeatAt(7'000, {}));
  EXPECT_FALSE(Read(1'000, 6'000).settled());
  // The spans of a worker that is gone stay.
  log_.Forget(kSecond);
  EXPECT_TRUE(Read(1'000, 6'000).settled());
  EXPECT_THAT(StartsOf(Read(1'000, 6'000), "b"), ElementsAre(4'100));
}

TEST_F(TraceLogTest, LeavesOutWhatMakesNoSense) {
  v1::Span step = SpanOf(1'000, 1);
  step.set_kind(v1::Span::KIND_STEP);  // the coordinator's alone
  Hear(kFirst, "a", 2'000,
       HeartbeatAt(2'000, {step, SpanOf(-1, 1), SpanOf(1'500, -1),
                           SpanOf(1'500, INT64_MAX), SpanOf(2'001, 0)}));
  Hear(kSecond, "b", 2'000, HeartbeatAt(INT64_MAX, {SpanOf(1'500, 1)}));
  Hear(kSecond, "b", 2'000, HeartbeatAt(-5, {SpanOf(1'500, 1)}));
  const v1::Trace trace = Read(INT64_MIN / 2, INT64_MAX / 2);
  EXPECT_EQ(trace.processes_size(), 0);
}

TEST_F(TraceLogTest, SaysHowManyWorkersHadNoRoomFor) {
  v1::Heartbeat heartbeat = HeartbeatAt(2'000, {});
  heartbeat.set_spans_dropped(7);
  Hear(kFirst, "a", 2'000, heartbeat);
  heartbeat.set_spans_dropped(2);
  Hear(kSecond, "b", 2'000, heartbeat);
  EXPECT_EQ(Read(1'000, 2'000).dropped(), 9u);
}

}  // namespace
}  // namespace sluice
