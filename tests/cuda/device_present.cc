#include <cuda_runtime.h>
#include <gtest/gtest.h>

// Skips all tests of a program that needs a device where there is none.

namespace {

class DevicePresent : public testing::Environment {
 public:
  void SetUp() override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess) GTEST_SKIP() << cudaGetErrorString(error);
    if (devices == 0) GTEST_SKIP() << "no CUDA device";
  }
};

const testing::Environment* const device_present =
    testing::AddGlobalTestEnvironment(new DevicePresent);

}  // namespace
