#include "runtime/memory/cpu_device.h"

#include <cstring>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBytes = uint64_t{1} << 20;

class CpuDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CpuDevice::Create({.budget = &budget_});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }
  DeviceBuffer Allocate(size_t bytes) {
    auto buffer = device_->Allocate("data", bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? *std::move(buffer) : DeviceBuffer();
  }

  MemoryBudget budget_{Tier::kDevice, kBytes};
  std::unique_ptr<Device> device_;
};

TEST_F(CpuDeviceTest, BytesGoInAndOut) {
  const DeviceBuffer a = Allocate(5000);
  const DeviceBuffer b = Allocate(5000);
  std::vector<std::byte> in(5000), out(5000);
  for (size_t i = 0; i < in.size(); ++i)
    in[i] = static_cast<std::byte>(i % 251);
  IoCompletion done;
  done.Expect(1);
  device_->CopyIn(a.span(), in, &done);
  ASSERT_TRUE(done.Wait().ok());
  done.Expect(1);
  device_->CopyWithin(b.span(), a.span(), &done);
  ASSERT_TRUE(done.Wait().ok());
  done.Expect(1);
  device_->CopyOut(out, b.span(), &done);
  ASSERT_TRUE(done.Wait().ok());
  EXPECT_EQ(in, out);
  // A copy within the device uses no copy stream.
  EXPECT_EQ(device_->totals().h2d_bytes, 5000u);
  EXPECT_EQ(device_->totals().d2h_bytes, 5000u);
  EXPECT_GT(device_->totals().h2d_busy_seconds, 0);
  EXPECT_GT(device_->totals().d2h_busy_seconds, 0);
}

TEST_F(CpuDeviceTest, WhatLiesOnTheWrongSideIsRefused) {
  const DeviceBuffer device = Allocate(4096);
  std::vector<std::byte> host(4096), other(4096);
  IoCompletion done;
  const auto refused = [&](const char* word) {
    const absl::Status status = done.Wait();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(word));
  };
  done.Expect(1);
  device_->CopyIn(host, other, &done);
  refused("h2d");
  done.Expect(1);
  device_->CopyIn(device.span(), device.span(), &done);
  refused("h2d");
  done.Expect(1);
  device_->CopyOut(host, other, &done);
  refused("d2h");
  done.Expect(1);
  device_->CopyOut(device.span(), device.span(), &done);
  refused("d2h");
  done.Expect(1);
  device_->CopyWithin(device.span(), host, &done);
  refused("within");
  EXPECT_EQ(device_->totals().h2d_bytes + device_->totals().d2h_bytes, 0u);
}

TEST_F(CpuDeviceTest, KnowsItsOwn) {
  const DeviceBuffer buffer = Allocate(4096);
  const std::byte* data = buffer.as<std::byte>();
  std::byte host{};
  EXPECT_TRUE(device_->Contains(data, 4096));
  EXPECT_TRUE(device_->Contains(data, kBytes));
  EXPECT_FALSE(device_->Contains(data, kBytes + 1));
  EXPECT_FALSE(device_->Contains(data - 1, 2));
  EXPECT_TRUE(device_->Touches(data - 1, 2));
  EXPECT_FALSE(device_->Touches(data - 1, 1));
  EXPECT_FALSE(device_->Contains(&host, 1));
  EXPECT_FALSE(device_->Touches(&host, 1));
  EXPECT_FALSE(device_->Contains(nullptr, 1));
}

TEST_F(CpuDeviceTest, TheBudgetIsHardAndMemoryComesBackZeroed) {
  {
    // Whole blocks are charged.
    const DeviceBuffer one = Allocate(1);
    EXPECT_EQ(one.bytes(), 1u);
    EXPECT_EQ(budget_.used_bytes(), 4096u);
    const auto too_much = device_->Allocate("weights", kBytes);
    EXPECT_TRUE(absl::IsResourceExhausted(too_much.status()));
    EXPECT_THAT(too_much.status().message(),
                HasSubstr("device memory: weights asks for 1.0 MiB"));
  }
  EXPECT_EQ(budget_.used_bytes(), 0u);
  // Pieces freed in any order become one piece again.
  std::vector<DeviceBuffer> pieces;
  for (int i = 0; i < 8; ++i) {
    pieces.push_back(Allocate(kBytes / 8));
    std::memset(pieces.back().data(), 0xff, pieces.back().bytes());
  }
  EXPECT_EQ(budget_.free_bytes(), 0u);
  for (const int i : {3, 1, 2, 7, 0, 5, 4, 6}) pieces[i] = DeviceBuffer();
  const DeviceBuffer all = Allocate(kBytes);
  ASSERT_EQ(all.bytes(), kBytes);
  for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(all.span()[i], std::byte{0});
}

TEST_F(CpuDeviceTest, ScatteredMemoryIsNoLargePiece) {
  std::vector<DeviceBuffer> pieces;
  for (int i = 0; i < 8; ++i) pieces.push_back(Allocate(kBytes / 8));
  pieces[1] = DeviceBuffer();
  pieces[5] = DeviceBuffer();
  const auto refused = device_->Allocate("weights", kBytes / 4);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_THAT(refused.status().message(),
              HasSubstr("in one piece for weights"));
  EXPECT_EQ(budget_.free_bytes(), kBytes / 4) << "nothing is charged for it";
}

}  // namespace
}  // namespace sluice
