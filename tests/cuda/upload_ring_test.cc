#include "runtime/kernels/cuda/device/upload_ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "tests/cuda/support/parity.h"
#include "tests/cuda/support/plain_device.h"
#ifdef SLUICE_CUDA_EMULATED
#include "tests/cuda/emulation/streams.h"
#endif

namespace sluice {
namespace {

using Bytes = std::vector<std::byte>;

class UploadRingTest : public testing::Test {
 protected:
  UploadRingTest() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
              cudaSuccess);
    auto ring = UploadRing::Create({.device = &device_,
                                    .host = &host_,
                                    .stream = stream_,
                                    .max_bytes = 1000});
    EXPECT_TRUE(ring.ok()) << ring.status();
    ring_ = *std::move(ring);
  }
  ~UploadRingTest() override {
    ring_.reset();
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  static Bytes Content(int seed, size_t size) {
    Random random(seed);
    return random.Bytes(size);
  }
  const std::byte* Put(const Bytes& content) {
    const auto at = ring_->Put(content);
    EXPECT_TRUE(at.ok()) << at.status();
    return at.ok() ? *at : nullptr;
  }
  // Returns what the stream sees there.
  Bytes Read(const std::byte* at, size_t size) {
    Bytes out(size);
    EXPECT_EQ(
        cudaMemcpyAsync(out.data(), at, size, cudaMemcpyDeviceToHost, stream_),
        cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return out;
  }

  MemoryBudget memory_{Tier::kDevice, uint64_t{1} << 20};
  MemoryBudget host_{Tier::kHost, uint64_t{1} << 20};
  PlainDevice device_{&memory_};
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<UploadRing> ring_;
};

TEST_F(UploadRingTest, BringsWhatIsPut) {
  for (int i = 0; i < 200; ++i) {
    const Bytes content = Content(i, 1 + i * 37 % 1000);
    const std::byte* at = Put(content);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % 256, 0u);
    ASSERT_EQ(Read(at, content.size()), content) << i;
  }
}

TEST_F(UploadRingTest, FindsWhatIsThere) {
  const Bytes a = Content(1, 300), b = Content(2, 300), c = Content(3, 50);
  const std::byte* at_a = Put(a);
  const std::byte* at_b = Put(b);
  const std::byte* at_c = Put(c);
  EXPECT_NE(at_a, at_b);
  // Layers ask for them one after the other, or in any order.
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(Put(a), at_a);
    EXPECT_EQ(Put(b), at_b);
    EXPECT_EQ(Put(c), at_c);
  }
  EXPECT_EQ(Put(c), at_c);
  EXPECT_EQ(Put(a), at_a);
  // Once the ring has come round, what was there is put again.
  Bytes other = Content(4, 900);
  for (int i = 0; i < 8; ++i) {
    other[0] = static_cast<std::byte>(i);
    Put(other);
  }
  EXPECT_EQ(Read(Put(a), a.size()), a);
}

TEST_F(UploadRingTest, RefusesWhatDoesNotFit) {
  EXPECT_TRUE(ring_->Put(Content(1, ring_->max_bytes())).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(
      ring_->Put(Content(1, ring_->max_bytes() + 1)).status()));
  EXPECT_TRUE(ring_->Put({}).ok());
}

TEST_F(UploadRingTest, IsCharged) {
  EXPECT_GE(memory_.used_bytes(), 4 * ring_->max_bytes());
  EXPECT_GE(host_.used_bytes(), 4 * ring_->max_bytes());
  MemoryBudget none(Tier::kHost, 100);
  EXPECT_TRUE(absl::IsResourceExhausted(
      UploadRing::Create({&device_, &none, stream_, 1000}).status()));
}

#ifdef SLUICE_CUDA_EMULATED

// The host fills the ring again only when the device has read it.
TEST_F(UploadRingTest, WaitsForTheDevice) {
  emulation::SetTiming(emulation::Timing::kLateCopies);
  constexpr int kCount = 40;
  constexpr size_t kSize = 700;
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, kCount * kSize), cudaSuccess);
  auto* const to = static_cast<std::byte*>(data);
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(cudaMemcpyAsync(to + i * kSize, Put(Content(i, kSize)), kSize,
                              cudaMemcpyDeviceToDevice, stream_),
              cudaSuccess);
  }
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(Read(to + i * kSize, kSize), Content(i, kSize)) << i;
  }
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  emulation::SetTiming(emulation::Timing::kAtOnce);
}

#endif

}  // namespace
}  // namespace sluice
