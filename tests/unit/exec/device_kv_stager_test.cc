#include "runtime/exec/kv/device_kv_stager.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/kv/kv_arena.h"
#include "runtime/memory/cpu_device.h"
#include "tests/unit/exec/kv_groups_testing.h"

namespace sluice {
namespace {

constexpr int kHostPages = 16;
constexpr int kLayers = 2;

class DeviceKvStagerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CpuDevice::Create({.budget = &budget_});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    scratch_ = *device_->Allocate("test", layout_.layer_page_bytes());
  }
  void Create(int slots, int64_t pages, bool overlap,
              std::unique_ptr<KvArena> host) {
    DeviceKvStager::Options options;
    options.context.device = device_.get();
    options.context.compute = &compute_;
    options.context.overlap = overlap;
    options.layout = layout_;
    options.group_pages = pages;
    options.slots = slots;
    options.host.of[KvGroup::kAll] = std::move(host);
    auto stager = DeviceKvStager::Create(std::move(options));
    ASSERT_TRUE(stager.ok()) << stager.status();
    stager_ = *std::move(stager);
  }
  // Makes a stager whose host arena has kHostPages in each layer.
  void Make(int slots, int64_t pages, bool overlap = true) {
    auto arena = KvArena::Create(layout_, kHostPages, &host_budget_);
    ASSERT_TRUE(arena.ok()) << arena.status();
    host_ = arena->get();
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int page = 0; page < kHostPages; ++page) {
        std::memset(Page(page, layer), page + 1, layout_.layer_page_bytes());
      }
    }
    Create(slots, pages, overlap, *std::move(arena));
  }
  std::byte* Page(int page, int layer = 0) {
    return host_->LayerBase(layer) + page * layout_.layer_page_bytes();
  }
  // Returns a segment of sequence `id`, with `start` positions that are there.
  static KvSegment Segment(int64_t id, std::span<const int32_t> pages,
                           int32_t start) {
    return {.sequence = SequenceId(id),
            .pages = pages,
            .start = start,
            .num_tokens = 1};
  }
  // Begins a step of so many layers of these micro-batches, each a run.
  void Begin(const std::vector<std::vector<KvSegment>>& batches, int layers) {
    step_.Begin({});
    step_.batches.clear();
    for (const std::vector<KvSegment>& segments : batches) {
      BatchWork& work = step_.batches.emplace_back();
      work.segments.resize(segments.size());
      KvWork& kv = work.kv[KvGroup::kAll];
      kv.segments = segments;
      kv.runs = {{0, static_cast<int32_t>(segments.size()), Tier::kHost}};
      for (const KvSegment& segment : segments) {
        kv.runs[0].pages += static_cast<int64_t>(segment.pages.size());
      }
    }
    step_.num_batches = batches.size();
    step_.Order(layers, /*row_by_row=*/false, /*head=*/false, /*added=*/false);
    stager_->BeginStep(&step_);
  }
  absl::Status Acquire(size_t item) {
    return stager_->Acquire(item, step_.kv_of(item).runs[0]);
  }
  const SegmentView& View(size_t item, int segment = 0) {
    return step_.batch_of(item).segments[segment];
  }
  int PageByte(const SegmentView& segment, int page) {
    EXPECT_TRUE(device_->Contains(segment.kv, 1));
    return static_cast<int>(
        segment.kv[segment.pages[page] * layout_.layer_page_bytes()]);
  }

  // Pages whose copy to the device has begun so far. Copies are done in order:
  // they are there when one more is.
  uint64_t PagesIn() {
    IoCompletion done;
    done.Expect(1);
    const std::vector<std::byte> page(layout_.layer_page_bytes());
    device_->CopyIn(scratch_.span().first(page.size()), page, &done);
    EXPECT_TRUE(done.Wait().ok());
    return device_->totals().h2d_bytes / page.size() - ++asked_;
  }

  const KvLayout layout_{
      .num_layers = kLayers, .num_kv_heads = 1, .head_dim = 16};
  MemoryBudget budget_{Tier::kDevice, uint64_t{1} << 22};
  MemoryBudget host_budget_{Tier::kHost, uint64_t{1} << 22};
  std::unique_ptr<Device> device_;
  DeviceBuffer scratch_;
  uint64_t asked_ = 0;  // copies of PagesIn()
  DeviceCompute compute_;
  KvArena* host_ = nullptr;
  const KvGroups groups_ = AllPositions(kLayers);
  StepWork step_{&groups_};
  std::unique_ptr<DeviceKvStager> stager_;
};

TEST_F(DeviceKvStagerTest, BringsWhatIsThereAndWritesBackWhatChanged) {
  Make(2, 8);
  const std::vector<int32_t> a = {3, 4, 9}, b = {7};
  // The last page of `a` is new: it has nothing to bring.
  Begin({{Segment(1, a, 2 * kPageTokens), Segment(2, b, 5)}}, 1);
  ASSERT_TRUE(Acquire(0).ok());
  EXPECT_EQ(PagesIn(), 3u);
  EXPECT_EQ(PageByte(View(0, 0), 0), 4);
  EXPECT_EQ(PageByte(View(0, 0), 1), 5);
  EXPECT_EQ(PageByte(View(0, 1), 0), 8);
  for (int page = 0; page < 3; ++page) {
    std::memset(
        View(0, 0).kv + View(0, 0).pages[page] * layout_.layer_page_bytes(),
        100 + page, layout_.layer_page_bytes());
  }
  std::memset(View(0, 1).kv + View(0, 1).pages[0] * layout_.layer_page_bytes(),
              200, layout_.layer_page_bytes());
  ASSERT_TRUE(stager_->Release().ok());
  Begin({{Segment(1, a, 2 * kPageTokens + 1), Segment(2, b, 6)}}, 1);
  ASSERT_TRUE(Acquire(0).ok());  // waits until what it reads was written
  EXPECT_EQ(Page(3)[0], std::byte{4}) << "no new position is in it";
  EXPECT_EQ(Page(4)[0], std::byte{5});
  EXPECT_EQ(Page(9)[0], std::byte{102});
  EXPECT_EQ(Page(7)[0], std::byte{200});
  EXPECT_EQ(PageByte(View(0, 0), 2), 102);
  EXPECT_EQ(PageByte(View(0, 1), 0), 200);
}

TEST_F(DeviceKvStagerTest, ReadsAheadAsFarAsThereAreSlots) {
  const std::vector<int32_t> a = {0}, b = {1}, c = {2};
  for (const int slots : {1, 2, 3}) {
    Make(slots, 4);
    const uint64_t before = PagesIn();
    Begin({{Segment(1, a, 1)}, {Segment(2, b, 1)}, {Segment(3, c, 1)}}, 1);
    EXPECT_EQ(PagesIn(), before);
    stager_->ReadAhead();
    for (int item = 0; item < 3; ++item) {
      ASSERT_TRUE(Acquire(item).ok());
      EXPECT_EQ(PageByte(View(item), 0), item + 1);
      // Those that are released may still be on their way back.
      EXPECT_LE(PagesIn() - before, item + slots);
      if (item == 0) {
        EXPECT_EQ(PagesIn() - before, slots);
      }
      ASSERT_TRUE(stager_->Release().ok());
    }
    EXPECT_EQ(PagesIn() - before, 3u);
  }
}

TEST_F(DeviceKvStagerTest, WithoutOverlapNothingIsBroughtAhead) {
  Make(1, 4, false);
  const std::vector<int32_t> a = {0}, b = {1};
  Begin({{Segment(1, a, 1)}, {Segment(2, b, 1)}}, 1);
  stager_->ReadAhead();
  EXPECT_EQ(PagesIn(), 0u);
  ASSERT_TRUE(Acquire(0).ok());
  std::memset(View(0).kv, 50, layout_.layer_page_bytes());
  EXPECT_EQ(PagesIn(), 1u);
  ASSERT_TRUE(stager_->Release().ok());
  EXPECT_EQ(PagesIn(), 1u);
  EXPECT_EQ(Page(0)[0], std::byte{50}) << "back before anything else";
  ASSERT_TRUE(Acquire(1).ok());
  EXPECT_EQ(PageByte(View(1), 0), 2);
}

TEST_F(DeviceKvStagerTest, ASlotThatIsInUseIsNotGivenAway) {
  Make(1, 4);
  const std::vector<int32_t> a = {0}, b = {1};
  Begin({{Segment(1, a, 1)}, {Segment(2, b, 1)}}, 1);
  ASSERT_TRUE(Acquire(0).ok());
  EXPECT_TRUE(absl::IsInternal(Acquire(1)));
  EXPECT_EQ(PageByte(View(0), 0), 1);
}

// A sequence may have two chunks in one step, in two micro-batches: the second
// must see what the first one wrote.
TEST_F(DeviceKvStagerTest, ALaterGroupSeesWhatAnEarlierOneWrote) {
  Make(3, 4);
  const std::vector<int32_t> a = {2}, other = {5};
  Begin({{Segment(1, a, 1)}, {Segment(2, other, 1)}, {Segment(1, a, 2)}}, 2);
  stager_->ReadAhead();
  for (size_t item = 0; item < step_.items.size(); ++item) {
    ASSERT_TRUE(Acquire(item).ok());
    const int layer = step_.items[item].layer;
    // Nothing of the third group's page was read too early.
    if (item % 3 == 2) {
      EXPECT_EQ(PageByte(View(item), 0), 77 + layer);
    }
    if (item % 3 == 0) {
      EXPECT_EQ(PageByte(View(item), 0), 3)
          << "another layer's are other pages";
      std::memset(View(item).kv, 77 + layer, layout_.layer_page_bytes());
    }
    ASSERT_TRUE(stager_->Release().ok());
  }
}

TEST_F(DeviceKvStagerTest, ACopyThatFailsIsAnError) {
  const std::vector<int32_t> a = {0};
  // Pages that are on the device already are no host pages.
  auto arena = KvArena::CreateOn(device_.get(), layout_, kHostPages);
  ASSERT_TRUE(arena.ok()) << arena.status();
  Create(2, 4, true, *std::move(arena));
  Begin({{Segment(1, a, 1)}}, 1);
  EXPECT_TRUE(absl::IsInternal(Acquire(0)));
  stager_->Reset();
  // A new sequence has nothing to be copied.
  Begin({{Segment(1, a, 0)}}, 1);
  EXPECT_TRUE(Acquire(0).ok());
}

TEST_F(DeviceKvStagerTest, AcquiringWhatIsNotNextIsAnError) {
  Make(2, 4);
  const std::vector<int32_t> a = {0}, b = {1};
  Begin({{Segment(1, a, 1)}, {Segment(2, b, 1)}}, 1);
  EXPECT_TRUE(absl::IsInternal(Acquire(1)));
  stager_->Reset();
  Begin({{Segment(1, a, 1)}}, 1);
  ASSERT_TRUE(Acquire(0).ok());
  ASSERT_TRUE(stager_->Release().ok());
  EXPECT_TRUE(absl::IsInternal(Acquire(0))) << "nothing is left";
}

}  // namespace
}  // namespace sluice
