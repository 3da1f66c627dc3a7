#include "runtime/memory/host_buffer.h"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "tests/unit/memory/pinning_device.h"

// Sanitizers would end the program where malloc refuses.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
extern "C" const char* __tsan_default_options() {
  return "allocator_may_return_null=1";
}

namespace sluice {
namespace {

TEST(HostBufferTest, IsZeroedAlignedAndCharged) {
  MemoryBudget budget(Tier::kHost, uint64_t{16} << 20);
  const struct {
    size_t bytes;
    size_t alignment;
  } kCases[] = {{0, 64},
                {1, 64},
                {4095, 64},
                {4096, 4096},
                {100'000, 4096},
                {size_t{2} << 20, size_t{2} << 20},
                {(size_t{2} << 20) + 1, size_t{2} << 20}};
  for (const auto& c : kCases) {
    auto buffer = HostBuffer::Create("test", c.bytes, &budget);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(buffer->bytes(), c.bytes);
    EXPECT_EQ(budget.used_bytes(), c.bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % c.alignment, 0u);
    const char* data = buffer->as<char>();
    EXPECT_EQ(std::count(data, data + c.bytes, 0),
              static_cast<std::ptrdiff_t>(c.bytes));
    const HostBuffer moved = *std::move(buffer);
    EXPECT_EQ(moved.data(), data);
    EXPECT_EQ(budget.used_bytes(), c.bytes);
  }
  EXPECT_EQ(budget.used_bytes(), 0u);
}

TEST(HostBufferTest, LargeOnesTakeMemoryWhereTheyAreTouched) {
  constexpr size_t kBytes = (size_t{64} << 20) + 12345;
  MemoryBudget budget(Tier::kHost, kBytes);
  auto buffer = HostBuffer::Create("test", kBytes, &budget);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(BackedPages(buffer->data(), kBytes), 0u);
  buffer->as<char>()[kBytes / 2] = 1;
  buffer->as<char>()[kBytes - 1] = 2;
  EXPECT_LE(BackedPages(buffer->data(), kBytes), 1024u);  // two huge pages
  EXPECT_EQ(buffer->as<char>()[0], 0);
}

TEST(HostBufferTest, IsBackedByManyThreadsBeforeItIsPinned) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one core";
  constexpr size_t kBytes = size_t{160} << 20;
  MemoryBudget budget(Tier::kHost, kBytes);
  auto buffer = HostBuffer::Create("test", kBytes, &budget);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  buffer->as<char>()[kBytes - 7] = 5;
  PinningDevice device;
  buffer->PinFor(&device);
  EXPECT_EQ(device.backed, kBytes);
  EXPECT_EQ(buffer->as<char>()[kBytes - 7], 5);
}

TEST(HostBufferTest, WantsRoom) {
  MemoryBudget small(Tier::kHost, 100);
  EXPECT_EQ(HostBuffer::Create("test", 101, &small).status().code(),
            absl::StatusCode::kResourceExhausted);
  MemoryBudget endless(Tier::kHost, UINT64_MAX);
  for (size_t bytes : {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 2}) {
    EXPECT_EQ(HostBuffer::Create("test", bytes, &endless).status().code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(endless.used_bytes(), 0u);
  }
}

}  // namespace
}  // namespace sluice
