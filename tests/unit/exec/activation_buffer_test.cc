#include "runtime/memory/activation_buffer.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace sluice {
namespace {

TEST(ActivationBufferTest, AlignedAndGrowing) {
  ActivationBuffer buffer;
  EXPECT_EQ(buffer.bytes(), 0u);
  for (int64_t rows : {1, 7, 3, 100}) {
    buffer.Resize(rows, 13);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_EQ(buffer.rows(), rows);
    EXPECT_EQ(buffer.cols(), 13);
    EXPECT_EQ(buffer.bytes(), rows * 13 * sizeof(float));
    for (int64_t i = 0; i < rows * 13; ++i) buffer.data()[i] = 1;
  }
}

TEST(ActivationBufferTest, KeepsItsMemoryWhenItShrinks) {
  ActivationBuffer buffer;
  buffer.Resize(10, 10);
  float* data = buffer.data();
  buffer.Resize(5, 10);
  EXPECT_EQ(buffer.data(), data);
  buffer.Resize(20, 5);
  EXPECT_EQ(buffer.data(), data);
}

TEST(ActivationPoolTest, Recycles) {
  ActivationPool pool;
  ActivationBuffer* first;
  {
    auto buffer = pool.Acquire(4, 4);
    first = buffer.get();
    EXPECT_NE(pool.Acquire(4, 4).get(), first);
  }
  auto again = pool.Acquire(2, 3);
  EXPECT_EQ(again.get(), first);
  EXPECT_EQ(again->rows(), 2);
}

TEST(ActivationPoolTest, BuffersOutliveThePool) {
  std::optional<ActivationPool> pool(std::in_place);
  auto buffer = pool->Acquire(3, 3);
  pool.reset();
  buffer->data()[8] = 1;
}

TEST(ActivationPoolTest, BuffersComeBackFromOtherThreads) {
  ActivationPool pool;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&pool] {
      for (int k = 0; k < 500; ++k) {
        auto buffer = pool.Acquire(1 + k % 5, 8);
        buffer->data()[0] = 1;
        std::thread last;
        if (k % 100 == 0) {
          last = std::thread(
              [moved = std::move(buffer)]() mutable { moved.reset(); });
          last.join();
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// Counts what is pinned.
class PinCountingDevice : public Device {
 public:
  explicit PinCountingDevice(int* pins) : Device(nullptr), pins_(pins) {}
  HostPin Pin(std::span<std::byte> host) override {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(host.data()) % 4096, 0u);
    EXPECT_EQ(host.size() % 4096, 0u);
    ++*pins_;
    return HostPin([pins = pins_] { --*pins; });
  }
  void CopyIn(std::span<std::byte>, std::span<const std::byte>, IoCompletion*,
              const IoLabel&) override {}
  void CopyOut(std::span<std::byte>, std::span<const std::byte>, IoCompletion*,
               const IoLabel&) override {}
  void CopyWithin(std::span<std::byte>, std::span<const std::byte>,
                  IoCompletion*) override {}
  bool Contains(const void*, size_t) const override { return false; }
  bool Touches(const void*, size_t) const override { return false; }
  Totals totals() const override { return {}; }

 private:
  absl::StatusOr<void*> Take(const std::string&, size_t) override {
    return nullptr;
  }
  void GiveBack(void*, size_t) override {}
  int* const pins_;
};

TEST(ActivationPoolTest, PinsForItsDeviceUntilItRetires) {
  int pins = 0;
  ActivationPool pool;
  std::shared_ptr<ActivationBuffer> kept;
  {
    PinCountingDevice device(&pins);
    ActivationPool pinning(&device);
    pool = pinning;
    auto buffer = pool.Acquire(3, 5);
    EXPECT_EQ(pins, 1);
    kept = pool.Acquire(1, 1);
    EXPECT_EQ(pins, 2);
    buffer.reset();
    pool.Retire();  // what is not in use goes
    EXPECT_EQ(pins, 1);
  }
  // The device is gone; who has a pool or a buffer may go on.
  const auto later = pool.Acquire(100, 100);
  EXPECT_EQ(pins, 1);
  kept.reset();
  EXPECT_EQ(pins, 0);
}

}  // namespace
}  // namespace sluice
