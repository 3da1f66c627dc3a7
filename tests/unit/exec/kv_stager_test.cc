#include "runtime/exec/kv/kv_stager.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/blocks.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/exec/kv_groups_testing.h"

namespace sluice {
namespace {

constexpr int32_t kStreamedLayers = 6;
constexpr int32_t kSequences = 4;
constexpr int32_t kPagesEach = 2;  // of a sequence

// Four sequences in two micro-batches; with all its pages, each is a group of
// its own.
class KvStagerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto io = IoEngine::Create({});
    ASSERT_TRUE(io.ok()) << io.status();
    io_ = *std::move(io);
    layout_ = {.num_layers = kStreamedLayers,
               .num_kv_heads = 2,
               .head_dim = 16,
               .page_alignment = kDiskBlockBytes};
  }

  void Create(bool overlap) {
    stager_.reset();
    auto stager = KvStager::Create({.layout = layout_,
                                    .layers = {kStreamedLayers, 0},
                                    .num_pages = {kSequences * kPagesEach, 0},
                                    .staging_bytes = KvStagingBytes(
                                        layout_.layer_page_bytes(), kPagesEach),
                                    .context = {.memory = &memory_,
                                                .disk = &disk_,
                                                .disk_dir = dir_.path(),
                                                .io = io_.get(),
                                                .overlap = overlap}});
    ASSERT_TRUE(stager.ok()) << stager.status();
    stager_ = *std::move(stager);
    EXPECT_EQ(stager_->max_run_pages(Tier::kDisk), kPagesEach);
    tables_.Clear();
    for (int32_t s = 0; s < kSequences; ++s) {
      ASSERT_TRUE(tables_.Admit(SequenceId(s), kPagesEach * kPageTokens).ok());
    }
  }

  // Positions [start, start + tokens) of each sequence.
  void Begin(int32_t start, int32_t tokens) {
    step_.Begin({});
    for (int32_t k = 0; k < 2; ++k) {
      MicroBatch batch;
      for (const int32_t s : {2 * k, 2 * k + 1}) {
        batch.segments.push_back({SequenceId(s), start, tokens});
      }
      batch.tokens.resize(2 * tokens);
      ASSERT_TRUE(step_
                      .Admit(batch,
                             {.max_step_tokens = 2 * kPageTokens,
                              .max_model_len = kPagesEach * kPageTokens,
                              .vocab_size = 1},
                             {0, 0, kPagesEach}, &tables_)
                      .ok());
    }
    step_.Order(kStreamedLayers, /*row_by_row=*/false, /*head=*/false,
                /*added=*/false);
    stager_->BeginStep(&step_);
  }

  static char Mark(int32_t layer, int32_t sequence, int32_t page) {
    return static_cast<char>(1 + 40 * page + 10 * sequence + layer);
  }

  // Finds in each group what earlier steps left there, and leaves its mark on
  // the pages from `first` on.
  void Run(int32_t first) {
    for (size_t item = 0; item < step_.items.size(); ++item) {
      const int32_t layer = step_.items[item].layer;
      const BatchWork& work = step_.batch_of(item);
      const KvWork& kv = step_.kv_of(item);
      for (const SegmentRun& run : kv.runs) {
        ASSERT_TRUE(stager_->Acquire(item, run).ok());
        for (int32_t i = run.first; i < run.first + run.count; ++i) {
          const SegmentView& segment = work.segments[i];
          const auto s = static_cast<int32_t>(kv.segments[i].sequence.value());
          ASSERT_EQ(segment.pages.size(), kv.segments[i].pages.size());
          for (size_t p = 0; p < segment.pages.size(); ++p) {
            std::byte* page =
                segment.kv + segment.pages[p] * layout_.layer_page_bytes();
            const char mark = Mark(layer, s, static_cast<int32_t>(p));
            if (static_cast<int32_t>(p) < first) {
              ASSERT_EQ(static_cast<char>(page[7]), mark);
            } else {
              std::memset(page, mark, layout_.layer_page_bytes());
            }
          }
        }
        ASSERT_TRUE(stager_->Release().ok());
      }
    }
  }

  uint64_t read() const { return stager_->totals().read_bytes; }
  uint64_t written() const { return stager_->totals().write_bytes; }

  TempDir dir_ = TempDir::OnDisk();
  MemoryBudget memory_{Tier::kHost, 64 << 20}, disk_{Tier::kDisk, 64 << 20};
  std::unique_ptr<IoEngine> io_;
  KvLayout layout_;
  PageTables tables_{
      {TierPages{0, 0, kSequences* kPagesEach}}, kPagesEach* kPageTokens, 0};
  const KvGroups groups_ = AllPositions(kStreamedLayers);
  StepWork step_{&groups_};
  std::unique_ptr<KvStager> stager_;
};

TEST_F(KvStagerTest, WhatAStepWroteTheNextOneReads) {
  for (const bool overlap : {true, false}) {
    Create(overlap);
    Begin(0, kPageTokens);
    Run(0);
    EXPECT_EQ(read(), 0u);
    Begin(kPageTokens, 1);
    Run(1);
    const size_t page = layout_.layer_page_bytes();
    EXPECT_EQ(read(), kStreamedLayers * kSequences * page);
    EXPECT_EQ(written(), 2 * kStreamedLayers * kSequences * page);
    // Pages that are read again hold what was written last.
    for (int32_t i = 1; i <= 2; ++i) {
      Begin(kPageTokens + i, 1);
      Run(2);
      EXPECT_EQ(read(), (1 + 2 * i) * kStreamedLayers * kSequences * page);
    }
  }
}

// The disk must not wait until the first layer's projections are computed, nor
// for each layer until the one before is done.
TEST_F(KvStagerTest, ReadsAsFarAheadAsItsMemoryHolds) {
  Create(true);
  Begin(0, kPageTokens);
  Run(0);
  stager_->Reset();  // what is being written has memory
  Begin(kPageTokens, 1);
  stager_->ReadAhead();
  const uint64_t page = layout_.layer_page_bytes();
  EXPECT_GE(read(), 4 * page);
  EXPECT_LE(read(), 5 * page);
  Run(1);
}

// Between the attention of two layers, the disk must not idle because what the
// first one changed was not away yet when it ended.
TEST_F(KvStagerTest, ReadsOnIntoTheMemoryOfWhatIsAwayByNow) {
  Create(true);
  Begin(0, kPageTokens);
  Run(0);
  stager_->Reset();
  Begin(kPageTokens, 1);
  stager_->ReadAhead();
  const uint64_t ahead = read();
  ASSERT_LT(ahead, kStreamedLayers * kSequences * layout_.layer_page_bytes());
  // A full ring has room for a group when the memory of two is back.
  for (const size_t group : {0, 1}) {
    ASSERT_TRUE(stager_->Acquire(0, step_.kv_of(0).runs[group]).ok());
    ASSERT_TRUE(stager_->Release().ok());
  }
  while (read() < ahead + layout_.layer_page_bytes()) stager_->ReadAhead();
}

TEST_F(KvStagerTest, WithoutOverlapReadsWhenItIsTaken) {
  Create(false);
  Begin(0, kPageTokens);
  Run(0);
  Begin(kPageTokens, 1);
  EXPECT_EQ(read(), 0u);
  Run(1);
}

TEST_F(KvStagerTest, RunsThatAreNotNextAreAnError) {
  Create(true);
  Begin(0, kPageTokens);
  EXPECT_TRUE(absl::IsInternal(stager_->Acquire(1, step_.kv_of(1).runs[0])));
  stager_->Reset();
}

}  // namespace
}  // namespace sluice
