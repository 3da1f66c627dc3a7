#include "runtime/memory/disk/io_engine.h"

#include <atomic>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "common/blocks.h"
#include "common/threads/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/memory/copy_engine.h"
#include "runtime/memory/cpu_topology.h"
#include "tests/unit/memory/disk_testing.h"

namespace sluice {
namespace {

constexpr size_t kDiskBlock = kDiskBlockBytes;
constexpr size_t kMiB = size_t{1} << 20;

using Backend = IoEngine::Backend;

// Tests with both backends, past the page cache and through it.
class IoEngineTest
    : public ::testing::TestWithParam<std::tuple<Backend, bool>> {
 protected:
  void SetUp() override {
    const auto uring = IoEngine::Create({.backend = Backend::kUring});
    if (backend() == Backend::kUring && absl::IsUnimplemented(uring.status())) {
      GTEST_SKIP() << uring.status();
    }
  }
  Backend backend() const { return std::get<0>(GetParam()); }

  std::unique_ptr<IoEngine> Engine(int queue_depth, size_t request_bytes,
                                   Tracer* tracer = nullptr) {
    auto engine = IoEngine::Create({.queue_depth = queue_depth,
                                    .request_bytes = request_bytes,
                                    .backend = backend(),
                                    .threads = queue_depth,
                                    .cores = UsableCores(),
                                    .tracer = tracer});
    EXPECT_TRUE(engine.ok()) << engine.status();
    EXPECT_EQ((*engine)->backend(), backend());
    return *std::move(engine);
  }
  std::unique_ptr<DiskFile> File(uint64_t bytes) {
    auto file = DiskFile::CreateTemporary(dir_.path(), "test", bytes, &budget_,
                                          std::get<1>(GetParam()));
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }

  const TempDir dir_ = TempDir::OnDisk();
  MemoryBudget budget_{Tier::kDisk, uint64_t{256} << 20};
};

TEST_P(IoEngineTest, ReadsWhatItWroteInAnySplit) {
  const size_t kBytes = kMiB + 5 * kDiskBlock;
  for (size_t request :
       {kDiskBlock, 3 * kDiskBlock, 64 * kDiskBlock, 1024 * kDiskBlock}) {
    auto engine = Engine(4, request);
    auto file = File(kBytes + 2 * kDiskBlock);
    HostBuffer out = TestBuffer(kBytes);
    FillPattern(request, Span(out));
    IoCompletion done;
    done.Expect(1);
    engine->Write(*file, kDiskBlock, Span(out), &done);
    ASSERT_TRUE(done.Wait().ok());

    // The data is read in pieces of different sizes, all at a time.
    HostBuffer in = TestBuffer(kBytes);
    size_t at = 0;
    for (size_t bytes = kDiskBlock; at < kBytes; bytes += 13 * kDiskBlock) {
      const size_t piece = std::min(bytes, kBytes - at);
      done.Expect(1);
      engine->Read(*file, kDiskBlock + at, Span(in).subspan(at, piece), &done);
      at += piece;
    }
    ASSERT_TRUE(done.Wait().ok());
    EXPECT_TRUE(HasPattern(request, Span(in)));
    EXPECT_EQ(engine->totals().bytes_written, kBytes);
    EXPECT_EQ(engine->totals().bytes_read, kBytes);
    EXPECT_GT(engine->totals().read_busy_seconds, 0);
    EXPECT_GT(engine->totals().write_busy_seconds, 0);
  }
}

TEST_P(IoEngineTest, NothingToDoIsDone) {
  auto engine = Engine(1, kDiskBlock);
  auto file = File(kDiskBlock);
  IoCompletion done;
  done.Expect(2);
  engine->Read(*file, 0, {}, &done);
  engine->Write(*file, kDiskBlock, {}, &done);
  EXPECT_TRUE(done.ready());
  EXPECT_TRUE(done.Wait().ok());
}

TEST_P(IoEngineTest, ManyThreadsReadAndWriteTheirOwn) {
  constexpr int kThreads = 4;
  constexpr size_t kPages = 64;
  auto engine = Engine(8, 4 * kDiskBlock);
  auto file = File(kThreads * kPages * kDiskBlock);
  std::vector<Thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back("user", [&, t] {
      std::mt19937 random(t);
      HostBuffer out = TestBuffer(kPages * kDiskBlock);
      HostBuffer in = TestBuffer(kPages * kDiskBlock);
      IoCompletion done;
      for (int round = 0; round < 20; ++round) {
        const size_t first = random() % kPages;
        const size_t bytes = (1 + random() % (kPages - first)) * kDiskBlock;
        const uint64_t offset = (t * kPages + first) * kDiskBlock;
        FillPattern(t * 1000 + round, Span(out).first(bytes));
        done.Expect(1);
        engine->Write(*file, offset, Span(out).first(bytes), &done);
        ASSERT_TRUE(done.Wait().ok());
        done.Expect(1);
        engine->Read(*file, offset, Span(in).first(bytes), &done);
        ASSERT_TRUE(done.Wait().ok());
        ASSERT_TRUE(HasPattern(t * 1000 + round, Span(in).first(bytes)));
      }
    });
  }
}

TEST_P(IoEngineTest, JobsOfOneDirectionAreServedInOrder) {
  constexpr int kJobs = 50;
  auto engine = Engine(1, kDiskBlock);
  auto file = File(4 * kDiskBlock);
  HostBuffer buffer = TestBuffer(4 * kDiskBlock);
  std::vector<IoCompletion> done(kJobs);
  for (int i = 0; i < kJobs; ++i) {
    done[i].Expect(1);
    engine->Read(*file, 0, Span(buffer).first((1 + i % 4) * kDiskBlock),
                 &done[i]);
  }
  // Checked from the last to the first, all jobs before a finished one are,
  // too.
  for (bool all = false; !all;) {
    all = true;
    bool later = false;
    for (int i = kJobs; i-- > 0;) {
      const bool ready = done[i].ready();
      ASSERT_TRUE(ready || !later) << i;
      later = later || ready;
      all = all && ready;
    }
  }
  for (IoCompletion& one : done) EXPECT_TRUE(one.Wait().ok());
}

TEST_P(IoEngineTest, ReadsAreVerifiedAndCopiedOneAfterAnother) {
  constexpr int kBlocks = 32;
  constexpr size_t kBlock = 16 * kDiskBlock;
  auto file = File(kBlocks * kBlock);
  HostBuffer staging = TestBuffer(kBlocks * kBlock);
  HostBuffer device = TestBuffer(kBlocks * kBlock);
  const auto block = [](const HostBuffer& buffer, int i) {
    return Span(buffer).subspan(i * kBlock, kBlock);
  };
  for (int i = 0; i < kBlocks; ++i) FillPattern(i, block(staging, i));
  ASSERT_TRUE(file->Write(0, Span(staging)).ok());
  FillPattern(99, Span(staging));

  IoCompletion copied;
  copied.Expect(kBlocks);
  CopyEngine copy({.name = "h2d"});
  std::vector<IoCompletion> read(kBlocks);
  auto engine = Engine(4, 4 * kDiskBlock);
  for (int i = 0; i < kBlocks; ++i) {
    read[i].Expect(1);
    engine->Read(*file, i * kBlock, block(staging, i), &read[i]);
  }
  for (int i = 0; i < kBlocks; ++i) {
    EXPECT_TRUE(read[i].Wait().ok());
    EXPECT_TRUE(HasPattern(i, block(staging, i)));
    copy.Copy(block(device, i), block(staging, i), &copied);
  }
  EXPECT_TRUE(copied.Wait().ok());
  for (int i = 0; i < kBlocks; ++i)
    EXPECT_TRUE(HasPattern(i, block(device, i)));
}

TEST_P(IoEngineTest, StopsWithJobsUnderWay) {
  constexpr size_t kBlock = 64 * kDiskBlock;
  auto file = File(kBlock);
  for (int jobs : {1, 3, 100}) {
    HostBuffer reads = TestBuffer(jobs * kBlock);
    HostBuffer writes = TestBuffer(kBlock);
    std::vector<IoCompletion> done(2 * jobs);
    {
      auto engine = Engine(4, 4 * kDiskBlock);
      for (int i = 0; i < jobs; ++i) {
        done[2 * i].Expect(1);
        engine->Read(*file, 0, Span(reads).subspan(i * kBlock, kBlock),
                     &done[2 * i]);
        done[2 * i + 1].Expect(1);
        engine->Write(*file, 0, Span(writes), &done[2 * i + 1]);
      }
    }
    for (IoCompletion& one : done) {
      ASSERT_TRUE(one.ready());
      EXPECT_TRUE(one.status().ok() || absl::IsCancelled(one.status()))
          << one.status();
    }
  }
}

TEST_P(IoEngineTest, SleepsAndWakesWithoutLosingJobs) {
  auto engine = Engine(2, kDiskBlock);
  auto file = File(8 * kDiskBlock);
  HostBuffer buffer = TestBuffer(8 * kDiskBlock);
  for (int i = 0; i < 1000; ++i) {
    IoCompletion done;
    done.Expect(1);
    engine->Read(*file, 0, Span(buffer).first((1 + i % 8) * kDiskBlock), &done);
    ASSERT_TRUE(done.Wait().ok());
  }
}

TEST_P(IoEngineTest, TheTimelineTilesTheBusyTime) {
  constexpr int kJobs = 40;
  Tracer tracer({});
  auto file = File(16 * kDiskBlock);
  HostBuffer writes = TestBuffer(8 * kDiskBlock);
  HostBuffer reads = TestBuffer(kJobs * 8 * kDiskBlock);
  auto engine = Engine(4, 2 * kDiskBlock, &tracer);
  IoCompletion done;
  done.Expect(2 * kJobs);
  for (int i = 0; i < kJobs; ++i) {
    engine->Write(*file, 0, Span(writes), &done,
                  {"kv store", {{{"layer", i}}}});
    engine->Read(*file, 8 * kDiskBlock,
                 Span(reads).subspan(i * 8 * kDiskBlock, 8 * kDiskBlock),
                 &done);
  }
  ASSERT_TRUE(done.Wait().ok());
  const IoEngine::Totals totals = engine->totals();
  engine.reset();

  for (const auto& [row, name, busy] :
       {std::tuple{"disk write", "kv store", totals.write_busy_seconds},
        std::tuple{"disk read", "read", totals.read_busy_seconds}}) {
    const std::vector<nlohmann::json> spans = SpansOfRow(tracer, row);
    ASSERT_EQ(spans.size(), static_cast<size_t>(kJobs)) << row;
    double last_end = 0;
    double total = 0;
    for (const nlohmann::json& span : spans) {
      EXPECT_EQ(span["name"], name);
      EXPECT_EQ(span["args"]["bytes"], 8 * kDiskBlock);
      EXPECT_GE(span["ts"].get<double>(), last_end - 2e-3);
      last_end = span["ts"].get<double>() + span["dur"].get<double>();
      total += span["dur"].get<double>() * 1e-6;
    }
    // They cover the busy time, and at most the gaps within jobs besides.
    EXPECT_GE(total, busy - 1e-6 * kJobs) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Backends, IoEngineTest,
    ::testing::Combine(::testing::Values(Backend::kUring, Backend::kThreads),
                       ::testing::Bool()),
    [](const auto& info) {
      return std::string(std::get<0>(info.param) == Backend::kUring
                             ? "Uring"
                             : "Threads") +
             (std::get<1>(info.param) ? "Direct" : "Cached");
    });

TEST(IoEngineOptionsTest, AreChecked) {
  EXPECT_TRUE(IoEngine::Options().Validate().ok());
  for (const IoEngine::Options& options :
       {IoEngine::Options{.queue_depth = 0},
        IoEngine::Options{.queue_depth = 5000},
        IoEngine::Options{.request_bytes = 0},
        IoEngine::Options{.request_bytes = kDiskBlock + 512},
        IoEngine::Options{.request_bytes = size_t{2} << 30},
        IoEngine::Options{.threads = 0}, IoEngine::Options{.threads = 1000}}) {
    EXPECT_EQ(IoEngine::Create(options).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace sluice
