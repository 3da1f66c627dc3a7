#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/kernels/backend_parts.h"
#include "runtime/kernels/cuda/cuda_access.h"
#include "tests/cuda/emulation/streams.h"

// Programs with this have the discrete CPU compute in a GPU's memory: the
// device is the emulated one with all its streams, and since its memory is the
// host's, DiscreteBackend may follow its addresses. What the CPU computes is
// done at once, so that copies that come late are missed by what does not wait.

namespace sluice {

absl::StatusOr<BackendParts> CreateCudaBackend(const DecoderSpec& spec,
                                               const BackendOptions& options) {
  return absl::UnimplementedError("the CPU computes here");
}

namespace {

// Gives tests that take any device with memory of its own this one, with the
// timing that the run of the program is for.
class GpuOfTheTests : public testing::Environment {
 public:
  void SetUp() override {
    setenv("SLUICE_TEST_DEVICE", "cpu-on-gpu", 1);
    emulation::SetTimingOfTheTest();
  }
};

const testing::Environment* const gpu_of_the_tests =
    testing::AddGlobalTestEnvironment(new GpuOfTheTests);

}  // namespace
}  // namespace sluice
