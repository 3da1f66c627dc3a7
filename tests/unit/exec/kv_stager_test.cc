#include "runtime/exec/kv/kv_stager.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

constexpr int32_t kLayers = 6;
constexpr int32_t kSequences = 4;
constexpr int32_t kPagesEach = 2;  // of a sequence

// Four sequences in two micro-batches, each a group of its own.
class KvStagerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto io = IoEngine::Create({});
    ASSERT_TRUE(io.ok()) << io.status();
    io_ = *std::move(io);
    layout_ = {.num_layers = kLayers,
               .num_kv_heads = 2,
               .head_dim = 16,
               .page_alignment = kDiskAlignment};
    for (int32_t s = 0; s < kSequences; ++s) {
      for (int32_t p = 0; p < kPagesEach; ++p) {
        pages_[s].push_back(kPagesEach * s + p);
      }
    }
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (int32_t k = 0; k < 2; ++k) order_.emplace_back(layer, k);
    }
  }

  void Create(bool overlap) {
    auto stager = KvStager::Create({.layout = layout_,
                                    .num_pages = kSequences * kPagesEach,
                                    .staging_bytes = KvStagingBytes(
                                        layout_.layer_page_bytes(), kPagesEach),
                                    .disk_dir = dir_.path(),
                                    .memory = &memory_,
                                    .disk = &disk_,
                                    .io = io_.get(),
                                    .overlap = overlap,
                                    .stall_seconds = &stall_,
                                    .read_bytes = &read_,
                                    .write_bytes = &written_});
    ASSERT_TRUE(stager.ok()) << stager.status();
    stager_ = *std::move(stager);
  }

  // Positions [start, start + tokens) of each sequence.
  void Begin(int32_t start, int32_t tokens) {
    groups_.assign(2, {});
    for (int32_t s = 0; s < kSequences; ++s) {
      KvStager::Group group;
      group.num_pages = kPagesEach;
      group.members.push_back({.sequence = SequenceId(s),
                               .segment = s % 2,
                               .pages = pages_[s],
                               .start = start,
                               .num_tokens = tokens});
      groups_[s / 2].push_back(group);
    }
    stager_->BeginStep(groups_, order_);
  }

  static char Mark(int32_t layer, int32_t sequence, int32_t page) {
    return static_cast<char>(1 + 40 * page + 10 * sequence + layer);
  }

  // Finds in each group what earlier steps left there, and leaves its mark on
  // the pages from `first` on.
  void Run(int32_t first) {
    SegmentView segments[2];
    for (const auto& [layer, k] : order_) {
      for (size_t g = 0; g < groups_[k].size(); ++g) {
        const KvStager::Group* group = nullptr;
        ASSERT_TRUE(stager_->Take(segments, &group).ok());
        ASSERT_EQ(group, &groups_[k][g]);
        const KvStager::Member& member = group->members[0];
        const SegmentView& segment = segments[member.segment];
        const auto s = static_cast<int32_t>(member.sequence.value());
        for (int32_t p = 0; p < kPagesEach; ++p) {
          std::byte* page =
              segment.kv + segment.pages[p] * layout_.layer_page_bytes();
          if (p < first) {
            ASSERT_EQ(static_cast<char>(page[7]), Mark(layer, s, p));
          } else {
            std::memset(page, Mark(layer, s, p), layout_.layer_page_bytes());
          }
        }
        stager_->Put();
        stager_->ReadAhead();
      }
    }
  }

  TempDir dir_ = TempDir::OnDisk();
  MemoryBudget memory_{Tier::kHost, 64 << 20}, disk_{Tier::kDisk, 64 << 20};
  std::unique_ptr<IoEngine> io_;
  KvLayout layout_;
  std::vector<int32_t> pages_[kSequences];
  std::vector<std::pair<int32_t, int32_t>> order_;
  std::vector<std::vector<KvStager::Group>> groups_;
  std::unique_ptr<KvStager> stager_;
  double stall_ = 0;
  uint64_t read_ = 0, written_ = 0;
};

TEST_F(KvStagerTest, WhatAStepWroteTheNextOneReads) {
  for (const bool overlap : {true, false}) {
    read_ = written_ = 0;
    Create(overlap);
    Begin(0, kPageTokens);
    Run(0);
    EXPECT_EQ(read_, 0);
    Begin(kPageTokens, 1);
    Run(1);
    const size_t page = layout_.layer_page_bytes();
    EXPECT_EQ(read_, kLayers * kSequences * page);
    EXPECT_EQ(written_, 2 * kLayers * kSequences * page);
    Begin(kPageTokens + 1, 1);
    Run(2);
    ASSERT_TRUE(stager_->Flush().ok());
  }
}

// The disk must not wait until the first layer's projections are computed, nor
// for each layer until the one before is done.
TEST_F(KvStagerTest, ReadsAsFarAheadAsItsMemoryHolds) {
  Create(true);
  Begin(0, kPageTokens);
  Run(0);
  ASSERT_TRUE(stager_->Flush().ok());  // what is being written has memory
  Begin(kPageTokens, 1);
  const uint64_t page = layout_.layer_page_bytes();
  EXPECT_GE(read_, 4 * page);
  EXPECT_LE(read_, 5 * page);
  Run(1);
}

TEST_F(KvStagerTest, WithoutOverlapReadsWhenItIsTaken) {
  Create(false);
  Begin(0, kPageTokens);
  Run(0);
  Begin(kPageTokens, 1);
  EXPECT_EQ(read_, 0);
  Run(1);
}

}  // namespace
}  // namespace sluice
