#include "runtime/kernels/cuda/gemm/cublas_library.h"

#include <cublasLt.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace sluice {
namespace {

// LoadCublas decides once in a process, so each test has a process of its own.
template <typename Body>
void InAProcess(const Body& body, const std::string& says) {
  EXPECT_EXIT(
      {
        body();
        const absl::Status status = LoadCublas();
        std::fprintf(stderr, "%s\n", std::string(status.ToString()).c_str());
        std::exit(static_cast<int>(status.code()));
      },
      testing::ExitedWithCode(
          static_cast<int>(absl::StatusCode::kFailedPrecondition)),
      says);
}

TEST(CublasLibraryDeathTest, SaysWhatItLookedForAndWhatToDo) {
  InAProcess(
      [] { setenv("SLUICE_CUBLASLT_LIBRARY", "/no/such/file", 1); },
      "cuBLASLt.*SLUICE_CUBLASLT_LIBRARY.*LD_LIBRARY_PATH.*/no/such/file");
}

TEST(CublasLibraryDeathTest, RefusesOtherLibraries) {
  InAProcess([] { setenv("SLUICE_CUBLASLT_LIBRARY", "libm.so.6", 1); },
             "libm.so.6 has no cublasLt.*no cuBLASLt");
}

TEST(CublasLibraryTest, FunctionsOfALibraryThatIsNotThereFail) {
  EXPECT_EXIT(
      {
        setenv("SLUICE_CUBLASLT_LIBRARY", "/no/such/file", 1);
        cublasLtHandle_t handle = nullptr;
        const cublasStatus_t status = cublasLtCreate(&handle);
        std::fprintf(stderr, "%s\n", cublasLtGetStatusString(status));
        std::exit(status == CUBLAS_STATUS_NOT_INITIALIZED ? 0 : 1);
      },
      testing::ExitedWithCode(0), "not loaded");
}

// The library is that of the machine that this runs on, if it has one.
TEST(CublasLibraryTest, TakesTheToolkits) {
  const absl::Status status = LoadCublas();
  if (!status.ok()) GTEST_SKIP() << status;
  EXPECT_STRNE(cublasLtGetStatusString(CUBLAS_STATUS_NOT_SUPPORTED),
               cublasLtGetStatusString(CUBLAS_STATUS_SUCCESS));
}

}  // namespace
}  // namespace sluice
