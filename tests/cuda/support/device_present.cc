#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

// Ends a program that tests a device where there is none, with the code by
// which ctest knows a test that was skipped.

namespace {

constexpr int kSkipped = 77;

class DevicePresent : public testing::Environment {
 public:
  void SetUp() override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error == cudaSuccess && devices > 0) return;
    std::printf("skipped: %s\n", error == cudaSuccess
                                     ? "no CUDA device"
                                     : cudaGetErrorString(error));
    std::fflush(stdout);
    std::_Exit(kSkipped);
  }
};

const testing::Environment* const device_present =
    testing::AddGlobalTestEnvironment(new DevicePresent);

}  // namespace
