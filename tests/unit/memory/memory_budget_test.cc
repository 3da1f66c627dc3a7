#include "runtime/memory/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(MemoryBudget, ChargesAndGivesBack) {
  MemoryBudget budget(Tier::kHost, 100);
  {
    auto weights = budget.Charge("weights", 60);
    ASSERT_TRUE(weights.ok());
    auto kv = budget.Charge("kv cache", 30);
    ASSERT_TRUE(kv.ok());
    auto more = budget.Charge("kv cache", 10);
    ASSERT_TRUE(more.ok());
    EXPECT_EQ(budget.used_bytes(), 100u);
    EXPECT_EQ(budget.free_bytes(), 0u);
    EXPECT_THAT(budget.holders(),
                ElementsAre(Pair("kv cache", 40), Pair("weights", 60)));
    kv->Release();
    kv->Release();  // again: nothing
    EXPECT_EQ(kv->bytes(), 0u);
    EXPECT_EQ(budget.used_bytes(), 70u);
  }
  EXPECT_EQ(budget.used_bytes(), 0u);
  EXPECT_EQ(budget.peak_bytes(), 100u);
  EXPECT_THAT(budget.holders(), IsEmpty());
  EXPECT_EQ(budget.limit_bytes(), 100u);
  EXPECT_EQ(budget.tier(), Tier::kHost);
}

TEST(MemoryBudget, RefusalSaysWhoAskedWhatIsLeftAndWhoHolds) {
  MemoryBudget budget(Tier::kDevice, 100);
  auto held = budget.Charge("weights", 60);
  ASSERT_TRUE(held.ok());
  for (const uint64_t bytes : {uint64_t{41}, UINT64_MAX}) {
    const auto refused = budget.Charge("activations", bytes);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
    const std::string message(refused.status().message());
    EXPECT_THAT(message, HasSubstr("device memory"));
    EXPECT_THAT(message, HasSubstr("activations asks for"));
    EXPECT_THAT(message, HasSubstr("more than is left of the 100 bytes"));
    EXPECT_THAT(message, HasSubstr("weights 60 bytes"));
    EXPECT_THAT(message, HasSubstr("--device-memory"));
  }
  EXPECT_EQ(budget.used_bytes(), 60u);
  EXPECT_TRUE(budget.Charge("activations", 40).ok());
  MemoryBudget none(Tier::kDisk, 0);
  EXPECT_TRUE(none.Charge("x", 0).ok());
  EXPECT_THAT(std::string(none.Charge("x", 1).status().message()),
              HasSubstr("--disk-space gives; held: nothing"));
}

TEST(MemoryBudget, ChargesMove) {
  MemoryBudget a(Tier::kHost, 10), b(Tier::kHost, 10);
  auto first = a.Charge("x", 4);
  auto second = b.Charge("y", 5);
  ASSERT_TRUE(first.ok() && second.ok());
  MemoryCharge charge = *std::move(first);
  EXPECT_EQ(charge.bytes(), 4u);
  charge = *std::move(second);  // gives the 4 bytes of `a` back
  EXPECT_EQ(a.used_bytes(), 0u);
  EXPECT_EQ(b.used_bytes(), 5u);
  MemoryCharge& self = charge;
  charge = std::move(self);
  EXPECT_EQ(b.used_bytes(), 5u);
  charge = MemoryCharge();
  EXPECT_EQ(b.used_bytes(), 0u);
}

TEST(MemoryBudget, APartChargesTheWhole) {
  MemoryBudget whole(Tier::kHost, 10);
  MemoryBudget part(&whole, 6), other(&whole, 8);
  EXPECT_EQ(part.tier(), Tier::kHost);
  {
    auto charge = part.Charge("x", 4);
    ASSERT_TRUE(charge.ok());
    EXPECT_EQ(whole.used_bytes(), 4u);
    // More than the part has, and more than the whole has.
    EXPECT_FALSE(part.Charge("y", 3).ok());
    EXPECT_FALSE(other.Charge("y", 7).ok());
    EXPECT_EQ(whole.used_bytes(), 4u);
    EXPECT_EQ(part.used_bytes(), 4u);
    EXPECT_EQ(other.used_bytes(), 0u);
    auto rest = other.Charge("y", 6);
    ASSERT_TRUE(rest.ok());
    EXPECT_EQ(whole.used_bytes(), 10u);
  }
  EXPECT_EQ(whole.used_bytes(), 0u);
  EXPECT_EQ(part.used_bytes(), 0u);
  EXPECT_THAT(whole.holders(), IsEmpty());
}

TEST(MemoryBudget, ThreadsNeverExceedTheLimit) {
  MemoryBudget budget(Tier::kHost, 50);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&budget, t] {
      for (int i = 0; i < 2000; ++i) {
        auto charge = budget.Charge(t % 2 == 0 ? "even" : "odd", 7 + t * 5);
        if (charge.ok()) {
          EXPECT_LE(budget.used_bytes(), 50u);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.used_bytes(), 0u);
  EXPECT_LE(budget.peak_bytes(), 50u);
  EXPECT_THAT(budget.holders(), IsEmpty());
}

}  // namespace
}  // namespace sluice
