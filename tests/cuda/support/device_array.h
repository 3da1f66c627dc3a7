#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace sluice {

// Device memory for some T, exactly; of what it holds at first, nothing is
// known.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(&data_, count * sizeof(T)), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& from) : DeviceArray(from.size()) {
    Write(from);
  }
  ~DeviceArray() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  size_t size() const { return count_; }
  void Write(const std::vector<T>& from) {
    ASSERT_EQ(from.size(), count_);
    EXPECT_EQ(cudaMemcpy(data_, from.data(), count_ * sizeof(T),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  // Returns what all launches before have left.
  std::vector<T> Read() const {
    std::vector<T> out(count_);
    EXPECT_EQ(cudaMemcpy(out.data(), data_, count_ * sizeof(T),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return out;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

}  // namespace sluice
