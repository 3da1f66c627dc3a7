#include "runtime/exec/activations/activation_stager.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/blocks.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

constexpr int32_t kHidden = 96;
constexpr int32_t kMaxRows = 512;

class ActivationStagerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto io = IoEngine::Create({});
    ASSERT_TRUE(io.ok()) << io.status();
    io_ = *std::move(io);
  }

  absl::StatusOr<std::unique_ptr<ActivationStager>> Create(int32_t batches,
                                                           double disk,
                                                           bool overlap) {
    return ActivationStager::Create(
        {.shape = {batches, kMaxRows, kHidden, disk},
         .context = {.memory = &memory_,
                     .disk = &disk_,
                     .disk_dir = dir_.path(),
                     .io = io_.get(),
                     .overlap = overlap}});
  }

  // A step of `layers` turns of each micro-batch: the first one makes its
  // stream, each other adds to it what depends on its place, the last one finds
  // what all of them left there.
  absl::Status RunStep(ActivationStager& stager,
                       const std::vector<int32_t>& rows, int layers,
                       bool row_by_row, float seed,
                       size_t stop_after = SIZE_MAX) {
    std::vector<int32_t> order;
    const auto batches = static_cast<int32_t>(rows.size());
    for (int i = 0; i < layers * batches; ++i) {
      order.push_back(row_by_row ? i / layers : i % batches);
    }
    // The head takes each micro-batch once more.
    for (int32_t k = 0; k < batches; ++k) order.push_back(k);
    if (absl::Status s = stager.BeginStep(order, rows); !s.ok()) return s;
    std::vector<int> times(rows.size());
    for (size_t i = 0; i < std::min(order.size(), stop_after); ++i) {
      const int32_t k = order[i];
      auto x = stager.Acquire(k);
      if (!x.ok()) return x.status();
      stager.ReadAhead();
      for (int64_t j = 0; j < int64_t{rows[k]} * kHidden; ++j) {
        const auto place = static_cast<float>(j) + seed;
        float& value = (*x)[j];
        if (times[k] == 0) {
          value = place;
        } else if (value != place + static_cast<float>(times[k] - 1)) {
          return absl::InternalError("another stream");
        } else {
          value += 1;
        }
      }
      ++times[k];
      stager.ReadAhead();
    }
    return absl::OkStatus();
  }

  TempDir dir_ = TempDir::OnDisk();
  MemoryBudget memory_{Tier::kHost, uint64_t{64} << 20};
  MemoryBudget disk_{Tier::kDisk, uint64_t{64} << 20};
  std::unique_ptr<IoEngine> io_;
};

TEST_F(ActivationStagerTest, EachTurnFindsWhatTheLastOneLeft) {
  for (const int32_t batches : {2, 3, 4, 5, 8}) {
    for (const double disk : {0.01, 0.3, 0.5, 1.0}) {
      for (const bool overlap : {true, false}) {
        auto stager = Create(batches, disk, overlap);
        ASSERT_TRUE(stager.ok()) << stager.status();
        float seed = 0;
        for (const int32_t present : {batches, batches - 1, 1, batches}) {
          for (const bool row_by_row : {false, true}) {
            std::vector<int32_t> rows;
            for (int32_t k = 0; k < present; ++k) {
              // The micro-batches have the most rows, a single row, and numbers
              // in between.
              rows.push_back(k == 0 ? kMaxRows : k == 1 ? 1 : 37 * k);
            }
            seed += 1000;
            EXPECT_TRUE(RunStep(**stager, rows, 5, row_by_row, seed).ok())
                << batches << " " << disk << " " << overlap << " " << present;
          }
        }
      }
    }
  }
  EXPECT_EQ(memory_.used_bytes(), 0u);
  EXPECT_EQ(disk_.used_bytes(), 0u);
}

TEST_F(ActivationStagerTest, WhatMovesIsTheShareOnDisk) {
  constexpr uint64_t kStream = sizeof(float) * kMaxRows * kHidden;
  for (const double disk : {0.25, 0.5, 1.0}) {
    auto stager = Create(4, disk, true);
    ASSERT_TRUE(stager.ok()) << stager.status();
    ASSERT_TRUE(
        RunStep(**stager, std::vector<int32_t>(4, kMaxRows), 6, false, 0).ok());
    // Six layers and the head: six times between them.
    const double all = 6.0 * 4 * kStream;
    StreamTotals moved = (*stager)->totals();
    EXPECT_NEAR(static_cast<double>(moved.write_bytes) / all, disk, 0.011);
    EXPECT_EQ(moved.read_bytes, moved.write_bytes);
    // Row by row, only the head comes back to a stream.
    ASSERT_TRUE(
        RunStep(**stager, std::vector<int32_t>(4, kMaxRows), 6, true, 0).ok());
    const uint64_t before = moved.write_bytes;
    moved = (*stager)->totals();
    EXPECT_NEAR(
        static_cast<double>(moved.write_bytes - before) / (4.0 * kStream), disk,
        0.011);
    EXPECT_EQ(moved.read_bytes, moved.write_bytes);
    // A micro-batch alone stays where it is.
    ASSERT_TRUE(RunStep(**stager, {kMaxRows}, 6, false, 0).ok());
    EXPECT_EQ((*stager)->totals().read_bytes, moved.read_bytes);
    EXPECT_EQ((*stager)->totals().write_bytes, moved.write_bytes);
  }
}

TEST_F(ActivationStagerTest, RoomIsChargedByName) {
  constexpr int32_t kRows = 2048;
  for (const double disk : {0.1, 0.25, 0.5, 0.77, 1.0}) {
    const ActivationShape shape = {3, kRows, 1000, disk};
    EXPECT_EQ(shape.total_bytes(), uint64_t{4} * 3 * kRows * 1000);
    EXPECT_NEAR(static_cast<double>(shape.memory_bytes()) /
                    static_cast<double>(shape.total_bytes()),
                1 - disk, 0.005);
    EXPECT_GE(shape.memory_bytes() + shape.disk_bytes(), shape.total_bytes());
    EXPECT_LT(shape.memory_bytes() + shape.disk_bytes(),
              shape.total_bytes() + 3 * 2 * kDiskBlockBytes);
  }
  auto stager = Create(4, 0.5, true);
  ASSERT_TRUE(stager.ok()) << stager.status();
  const ActivationShape shape = {4, kMaxRows, kHidden, 0.5};
  EXPECT_EQ(memory_.holders().at("activations"), shape.memory_bytes());
  EXPECT_EQ(memory_.holders().at("activation staging"), shape.staging_bytes());
  EXPECT_EQ(disk_.holders().at("activations"), shape.disk_bytes());
}

TEST_F(ActivationStagerTest, ResetInTheMiddleLeavesNothingBehind) {
  auto stager = Create(4, 1.0, true);
  ASSERT_TRUE(stager.ok()) << stager.status();
  const std::vector<int32_t> rows(4, kMaxRows);
  float seed = 0;
  for (size_t stop = 0; stop < 20; ++stop) {
    seed += 1000;
    ASSERT_TRUE(RunStep(**stager, rows, 4, false, seed, stop).ok());
    if (stop % 2 == 0) (*stager)->Reset();
    seed += 1000;
    EXPECT_TRUE(RunStep(**stager, rows, 4, false, seed).ok());
  }
  // This step is not at its end when the stager is destroyed.
  ASSERT_TRUE(RunStep(**stager, rows, 4, false, seed, 7).ok());
}

TEST_F(ActivationStagerTest, RefusesWhatDoesNotFit) {
  auto stager = Create(2, 1.0, true);
  ASSERT_TRUE(stager.ok()) << stager.status();
  EXPECT_TRUE(
      absl::IsInvalidArgument(RunStep(**stager, {1, 1, 1}, 1, false, 0)));
  EXPECT_TRUE(
      absl::IsInvalidArgument(RunStep(**stager, {kMaxRows + 1}, 1, false, 0)));
  ASSERT_TRUE(
      (*stager)
          ->BeginStep(std::vector<int32_t>{0, 1}, std::vector<int32_t>{1, 1})
          .ok());
  EXPECT_TRUE(absl::IsInternal((*stager)->Acquire(1).status()));
  EXPECT_TRUE((*stager)->Acquire(0).ok());
}

TEST_F(ActivationStagerTest, TooLittleRoomIsRefusedByName) {
  MemoryBudget none(Tier::kDisk, 4096);
  const ActivationStager::Options options = {
      .shape = {2, kMaxRows, kHidden, 0.5},
      .context = {.memory = &memory_,
                  .disk = &none,
                  .disk_dir = dir_.path(),
                  .io = io_.get()}};
  const absl::Status status = ActivationStager::Create(options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "activations")) << status;
  EXPECT_EQ(memory_.used_bytes(), 0u);
}

TEST_F(ActivationStagerTest, AFailedWriteShowsInTheStepAndNotAfter) {
  for (const bool overlap : {true, false}) {
    auto stager = Create(4, 1.0, overlap);
    ASSERT_TRUE(stager.ok()) << stager.status();
    const std::vector<int32_t> rows(4, kMaxRows);
    {
      const FileSizeLimit limit(8 * kDiskBlockBytes);
      const absl::Status status = RunStep(**stager, rows, 4, false, 0);
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "activations")) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), dir_.path().string()))
          << status;
    }
    (*stager)->Reset();
    EXPECT_TRUE(RunStep(**stager, rows, 4, false, 1000).ok());
  }
}

// Takes what was written away from the files in `dir` that this process has
// open, for as long as it lives: what is read then ends at once.
class EmptiedFiles {
 public:
  explicit EmptiedFiles(const std::string& dir) {
    std::vector<int> found;
    for (const auto& fd :
         std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code ignored;
      const std::string target =
          std::filesystem::read_symlink(fd.path(), ignored).string();
      if (absl::StrContains(target, dir)) {
        found.push_back(std::stoi(fd.path().filename()));
      }
    }
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int fd : found) {
      saved_.emplace_back(fd, dup(fd));
      dup2(null, fd);
    }
    close(null);
  }
  ~EmptiedFiles() {
    for (const auto& [fd, saved] : saved_) {
      dup2(saved, fd);
      close(saved);
    }
  }
  size_t size() const { return saved_.size(); }

 private:
  std::vector<std::pair<int, int>> saved_;
};

TEST_F(ActivationStagerTest, AFailedReadShowsInTheStepAndNotAfter) {
  for (const bool overlap : {true, false}) {
    auto stager = Create(4, 1.0, overlap);
    ASSERT_TRUE(stager.ok()) << stager.status();
    const std::vector<int32_t> rows = {1, 1, 1, 200};
    // All but the next one's stream are on disk.
    ASSERT_TRUE(RunStep(**stager, rows, 4, false, 0, 7).ok());
    {
      const EmptiedFiles emptied(dir_.path());
      ASSERT_EQ(emptied.size(), 1);
      absl::Status status;
      for (const int32_t k : {3, 0, 1, 2}) {
        status.Update((*stager)->Acquire(k).status());
      }
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "activations")) << status;
      (*stager)->Reset();
    }
    EXPECT_TRUE(RunStep(**stager, rows, 4, false, 1000).ok());
  }
}

}  // namespace
}  // namespace sluice
