#include "runtime/memory/copy_engine.h"

#include <atomic>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/memory/cpu_topology.h"
#include "tests/unit/memory/disk_testing.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(CopyEngineTest, CopiesInOrder) {
  // Each byte goes down the chain only if the copies keep their order.
  constexpr size_t kSteps = 1000;  // more than the queue begins with
  std::vector<std::byte> chain(kSteps + 1);
  chain[0] = std::byte{42};
  CopyEngine engine({.name = "h2d", .cores = UsableCores()});
  IoCompletion done;
  done.Expect(kSteps);
  for (size_t i = 0; i < kSteps; ++i) {
    engine.Copy(std::span(chain).subspan(i + 1, 1),
                std::span(chain).subspan(i, 1), &done);
  }
  EXPECT_TRUE(done.Wait().ok());
  EXPECT_EQ(chain[kSteps], std::byte{42});
  EXPECT_EQ(engine.totals().bytes, kSteps);
  EXPECT_GT(engine.totals().busy_seconds, 0);
}

TEST(CopyEngineTest, ShowsInTheTimeline) {
  Tracer tracer({});
  std::vector<std::byte> a(100);
  std::vector<std::byte> b(100);
  {
    CopyEngine engine({.name = "d2h", .tracer = &tracer});
    IoCompletion done;
    done.Expect(2);
    engine.Copy(a, b, &done, {"kv", {{{"layer", 5}}}});
    engine.Copy(b, a, &done);
    EXPECT_TRUE(done.Wait().ok());
  }
  const std::vector<nlohmann::json> spans = SpansOfRow(tracer, "d2h");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0]["name"], "kv");
  EXPECT_EQ(spans[0]["args"], (nlohmann::json{{"layer", 5}, {"bytes", 100}}));
  EXPECT_EQ(spans[1]["name"], "copy");
}

TEST(CopyEngineTest, RefusesUnlikeSizes) {
  std::vector<std::byte> a(3);
  std::vector<std::byte> b(4);
  CopyEngine engine({.name = "h2d"});
  IoCompletion done;
  done.Expect(1);
  engine.Copy(a, b, &done);
  EXPECT_EQ(done.Wait().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(done.status().message(), HasSubstr("h2d"));
  done.Expect(1);
  engine.Copy({}, {}, &done);
  EXPECT_TRUE(done.Wait().ok());
}

TEST(CopyEngineTest, StopsWithJobsWaiting) {
  std::vector<std::byte> a(1 << 20);
  std::vector<std::byte> b(1 << 20);
  std::vector<IoCompletion> done(64);
  {
    auto engine = std::make_unique<CopyEngine>(CopyEngine::Options{});
    for (IoCompletion& one : done) {
      one.Expect(1);
      engine->Copy(a, b, &one);
    }
  }
  bool cancelled = false;
  for (IoCompletion& one : done) {
    ASSERT_TRUE(one.ready());
    EXPECT_TRUE(one.status().ok() || absl::IsCancelled(one.status()));
    // Jobs end in order: those after a cancelled one are cancelled.
    EXPECT_FALSE(cancelled && one.status().ok());
    cancelled = cancelled || !one.status().ok();
  }
}

}  // namespace
}  // namespace sluice
