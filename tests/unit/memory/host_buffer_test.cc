#include "runtime/memory/host_buffer.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "gtest/gtest.h"

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
