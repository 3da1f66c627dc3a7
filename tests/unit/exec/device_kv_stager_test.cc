#include "runtime/exec/kv/device_kv_stager.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "runtime/memory/cpu_device.h"

namespace sluice {
namespace {

constexpr int kHostPages = 16;

class DeviceKvStagerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CpuDevice::Create({.budget = &budget_});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    host_.resize(kHostPages * layout_.layer_page_bytes());
    for (int page = 0; page < kHostPages; ++page) {
      std::memset(Page(page), page + 1, layout_.layer_page_bytes());
    }
  }
  void Make(int slots, int64_t pages) {
    auto stager = DeviceKvStager::Create({.device = device_.get(),
                                          .compute = &compute_,
                                          .layout = layout_,
                                          .group_pages = pages,
                                          .slots = slots});
    ASSERT_TRUE(stager.ok()) << stager.status();
    stager_ = *std::move(stager);
  }
  std::byte* Page(int page) {
    return host_.data() + page * layout_.layer_page_bytes();
  }
  // Of sequence `id`, with `start` positions that are there.
  DeviceKvStager::Member Member(int64_t id, std::span<const int32_t> pages,
                                int32_t start, int32_t segment = 0) {
    return {.sequence = SequenceId(id),
            .segment = segment,
            .kv = host_.data(),
            .pages = pages,
            .start = start,
            .num_tokens = 1};
  }
  bool Load(int32_t layer, const std::vector<DeviceKvStager::Member>& members,
            bool wait = false) {
    const auto loaded = stager_->Load(layer, members, wait);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() && *loaded;
  }
  int PageByte(const SegmentView& segment, int page) {
    EXPECT_TRUE(device_->Contains(segment.kv, 1));
    return static_cast<int>(
        segment.kv[segment.pages[page] * layout_.layer_page_bytes()]);
  }

  const KvLayout layout_{.num_layers = 1, .num_kv_heads = 1, .head_dim = 16};
  MemoryBudget budget_{Tier::kDevice, uint64_t{1} << 22};
  std::unique_ptr<Device> device_;
  DeviceCompute compute_;
  std::vector<std::byte> host_;
  std::unique_ptr<DeviceKvStager> stager_;
};

TEST_F(DeviceKvStagerTest, BringsWhatIsThereAndWritesBackWhatChanged) {
  Make(2, 8);
  const std::vector<int32_t> a = {3, 4, 9}, b = {7};
  std::vector<SegmentView> segments(2);
  // The last page of `a` is new: it has nothing to bring.
  ASSERT_TRUE(Load(0, {Member(1, a, 2 * kPageTokens, 0), Member(2, b, 5, 1)}));
  ASSERT_TRUE(stager_->Take(segments).ok());
  EXPECT_EQ(PageByte(segments[0], 0), 4);
  EXPECT_EQ(PageByte(segments[0], 1), 5);
  EXPECT_EQ(PageByte(segments[1], 0), 8);
  for (int page = 0; page < 3; ++page) {
    std::memset(
        segments[0].kv + segments[0].pages[page] * layout_.layer_page_bytes(),
        100 + page, layout_.layer_page_bytes());
  }
  std::memset(
      segments[1].kv + segments[1].pages[0] * layout_.layer_page_bytes(), 200,
      layout_.layer_page_bytes());
  ASSERT_TRUE(stager_->Put().ok());
  ASSERT_TRUE(stager_->Flush().ok());
  EXPECT_EQ(Page(3)[0], std::byte{4}) << "no new position is in it";
  EXPECT_EQ(Page(4)[0], std::byte{5});
  EXPECT_EQ(Page(9)[0], std::byte{102});
  EXPECT_EQ(Page(7)[0], std::byte{200});
}

TEST_F(DeviceKvStagerTest, WaitsForRoomOnlyIfAsked) {
  Make(1, 4);
  const std::vector<int32_t> a = {0}, b = {1};
  std::vector<SegmentView> segments(1);
  ASSERT_TRUE(Load(0, {Member(1, a, 1)}));
  EXPECT_FALSE(Load(0, {Member(2, b, 1)}, true)) << "the slot is in use";
  ASSERT_TRUE(stager_->Take(segments).ok());
  EXPECT_FALSE(Load(0, {Member(2, b, 1)}, true));
  ASSERT_TRUE(stager_->Put().ok());
  EXPECT_TRUE(Load(0, {Member(2, b, 1)}, true));
}

// A sequence may have two chunks in one step, in two micro-batches: the second
// must see what the first one wrote.
TEST_F(DeviceKvStagerTest, ALaterGroupSeesWhatAnEarlierOneWrote) {
  Make(3, 4);
  const std::vector<int32_t> a = {2}, in_layer_6 = {3};
  std::vector<SegmentView> first(1), second(1);
  ASSERT_TRUE(Load(5, {Member(1, a, 1)}));
  EXPECT_FALSE(Load(5, {Member(1, a, 2)})) << "it would read what is old";
  EXPECT_TRUE(Load(6, {Member(1, in_layer_6, 2)}))
      << "another layer's are other pages";
  ASSERT_TRUE(stager_->Take(first).ok());
  std::memset(first[0].kv, 77, layout_.layer_page_bytes());
  EXPECT_FALSE(Load(5, {Member(1, a, 2)}));
  ASSERT_TRUE(stager_->Put().ok());
  ASSERT_TRUE(Load(5, {Member(1, a, 2)}));
  ASSERT_TRUE(stager_->Take(second).ok());  // of layer 6
  ASSERT_TRUE(stager_->Put().ok());
  ASSERT_TRUE(stager_->Take(second).ok());
  EXPECT_EQ(PageByte(second[0], 0), 77);
}

TEST_F(DeviceKvStagerTest, ACopyThatFailsIsAnError) {
  Make(2, 4);
  const std::vector<int32_t> a = {0};
  // Pages that are on the device already are no host pages.
  auto device_pages = device_->Allocate("kv", layout_.layer_page_bytes());
  ASSERT_TRUE(device_pages.ok());
  DeviceKvStager::Member member = Member(1, a, 1);
  member.kv = device_pages->as<std::byte>();
  std::vector<SegmentView> segments(1);
  ASSERT_TRUE(Load(0, {member}));
  EXPECT_TRUE(absl::IsInternal(stager_->Take(segments)));
  stager_->Reset();
  ASSERT_TRUE(Load(0, {Member(1, a, 1)}));
  EXPECT_TRUE(stager_->Take(segments).ok());
}

TEST_F(DeviceKvStagerTest, TakingMoreThanWasLoadedIsAnError) {
  Make(2, 4);
  std::vector<SegmentView> segments(1);
  EXPECT_TRUE(absl::IsInternal(stager_->Take(segments)));
}

}  // namespace
}  // namespace sluice
