#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

// The common parts of the tests of the device's kernels. The same tests run on
// the emulation and on a device.

namespace sluice {

// Calls `body`, which returns what a kernel made, with the threads taking turns
// in each order, and expects the same bits of it. On a device, it is called
// twice.
template <typename Body>
auto InAnyOrder(const Body& body) {
#ifdef SLUICE_CUDA_EMULATED
  const auto with = [&](emulation::Order order) {
    emulation::SetOrder(order);
    auto result = body();
    emulation::SetOrder(emulation::Order::kForward);
    return result;
  };
  const auto again = with(emulation::Order::kBackward);
  const auto once_more = with(emulation::Order::kShuffled);
#else
  const auto again = body();
  const auto once_more = again;
#endif
  const auto result = body();
  using T = typename decltype(body())::value_type;
  EXPECT_EQ(result.size(), again.size());
  EXPECT_EQ(std::memcmp(result.data(), again.data(), result.size() * sizeof(T)),
            0);
  EXPECT_EQ(
      std::memcmp(result.data(), once_more.data(), result.size() * sizeof(T)),
      0);
  return result;
}

// Half an ulp of numbers in [1, 2): what rounding to T costs, relatively.
template <typename T>
inline constexpr double kRounding = std::is_same_v<T, float>    ? 0x1p-24
                                    : std::is_same_v<T, __half> ? 0x1p-11
                                                                : 0x1p-8;

template <typename T>
std::vector<float> ToFloats(const std::vector<T>& from) {
  return {from.begin(), from.end()};
}

// |got - want| / |want|, as vectors; NaN if there is one in either.
inline double RelativeError(std::span<const float> got,
                            std::span<const float> want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double delta = static_cast<double>(got[i]) - want[i];
    error += delta * delta;
    norm += static_cast<double>(want[i]) * want[i];
  }
  return norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
}

class Random {
 public:
  explicit Random(int seed) : engine_(static_cast<unsigned>(seed)) {}

  // Returns a number in [low, high].
  int Int(int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(engine_);
  }
  bool Coin() { return Int(0, 1) == 1; }
  // Returns a number that is often round, and often not.
  int Size(int high) {
    const int n = Int(1, high);
    return Coin() && n >= 8 ? n / 8 * 8 : n;
  }
  template <typename T = float>
  std::vector<T> Normal(size_t count, float mean = 0, float deviation = 1) {
    std::normal_distribution<float> normal(mean, deviation);
    std::vector<T> out(count);
    for (T& x : out) x = T(normal(engine_));
    return out;
  }
  std::vector<std::byte> Bytes(size_t count) {
    std::vector<std::byte> out(count);
    for (std::byte& b : out) b = static_cast<std::byte>(Int(0, 255));
    return out;
  }
  std::mt19937& engine() { return engine_; }

 private:
  std::mt19937 engine_;
};

}  // namespace sluice
