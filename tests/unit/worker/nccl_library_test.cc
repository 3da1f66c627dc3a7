#include "worker/link/nccl_library.h"

#include "gmock/gmock.h"
#include "tests/nccl/nccl_testing.h"
#include "worker/link/link_choice.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status Load(const std::string& nccl, const std::string& cuda) {
  return NcclLibrary::Load(nccl, cuda).status();
}

TEST(NcclLibraryTest, Loads) {
  const auto library = NcclLibrary::Load(SLUICE_FAKE_GPU, SLUICE_FAKE_GPU);
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ((*library)->version(), "2.28.9");
}

TEST(NcclLibraryTest, Missing) {
  absl::Status status = Load(SLUICE_FAKE_GPU, "/nowhere/libcuda.so.1");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.ToString(), AllOf(HasSubstr("/nowhere/libcuda.so.1"),
                                       HasSubstr("--cuda-library")));
  status = Load("/nowhere/libnccl.so.2", SLUICE_FAKE_GPU);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.ToString(), AllOf(HasSubstr("/nowhere/libnccl.so.2"),
                                       HasSubstr("--nccl-library")));
}

TEST(NcclLibraryTest, WithoutAFunction) {
  const absl::Status status =
      Load(SLUICE_FAKE_GPU_WITHOUT_SEND, SLUICE_FAKE_GPU);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(), HasSubstr("has no ncclSend"));
  // This library is not NCCL at all.
  EXPECT_THAT(Load(SLUICE_FAKE_GPU, "libm.so.6").ToString(),
              HasSubstr("has no cuInit"));
}

TEST(NcclLibraryTest, TooOld) {
  const absl::Status status = Load(SLUICE_FAKE_GPU_OLD, SLUICE_FAKE_GPU);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(),
              HasSubstr("is NCCL 2.13.4; links need 2.14 or later"));
}

TEST(NcclTransportTest, WithoutADevice) {
  const FakeGpuGuard guard;
  const NcclOptions options = {.nccl_library = SLUICE_FAKE_GPU,
                               .cuda_library = SLUICE_FAKE_GPU};
  fake_gpu_hide_device(1);
  EXPECT_THAT(CreateNcclTransport(options).status().ToString(),
              HasSubstr("there is no GPU 0: the CUDA driver knows 0"));
}

TEST(LinkChoiceTest, Names) {
  EXPECT_EQ(*ParseLinkChoice("auto"), LinkChoice::kAuto);
  EXPECT_EQ(*ParseLinkChoice("grpc"), LinkChoice::kGrpc);
  EXPECT_EQ(*ParseLinkChoice("nccl"), LinkChoice::kNccl);
  EXPECT_EQ(*ParseLinkChoice("tcp"), LinkChoice::kTcp);
  EXPECT_EQ(ParseLinkChoice("mpi").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(LinkChoiceTest, WhoHasTcp) {
  const auto has = [](LinkChoice choice, bool port) {
    return OpenTcpLinks({.choice = choice, .has_port = port}) != nullptr;
  };
  EXPECT_TRUE(has(LinkChoice::kAuto, true));
  EXPECT_TRUE(has(LinkChoice::kTcp, true));
  EXPECT_FALSE(has(LinkChoice::kGrpc, true));
  EXPECT_FALSE(has(LinkChoice::kNccl, true));
  EXPECT_FALSE(has(LinkChoice::kAuto, false));
}

TEST(LinkChoiceTest, WhoHasNccl) {
  const FakeGpuGuard guard;
  const auto open = [](LinkChoice choice, BackendKind backend,
                       const std::string& nccl) {
    return OpenPayloads({choice, nccl, SLUICE_FAKE_GPU}, {backend});
  };
  const std::string none = "/nowhere/libnccl.so.2";
  EXPECT_EQ(*open(LinkChoice::kGrpc, BackendKind::kCuda, SLUICE_FAKE_GPU),
            nullptr);
  EXPECT_EQ(*open(LinkChoice::kAuto, BackendKind::kCpu, SLUICE_FAKE_GPU),
            nullptr);
  EXPECT_EQ(*open(LinkChoice::kAuto, BackendKind::kCuda, none), nullptr);
  const auto automatic =
      open(LinkChoice::kAuto, BackendKind::kCuda, SLUICE_FAKE_GPU);
  ASSERT_TRUE(automatic.ok() && *automatic != nullptr);
  EXPECT_THAT((*automatic)->name(), HasSubstr("NCCL 2.28.9 on GPU-"));
  EXPECT_THAT((*automatic)->gpu_uuid(), HasSubstr("GPU-"));
  const auto forced =
      open(LinkChoice::kNccl, BackendKind::kCpu, SLUICE_FAKE_GPU);
  EXPECT_TRUE(forced.ok() && *forced != nullptr);
  const absl::Status status =
      open(LinkChoice::kNccl, BackendKind::kCuda, none).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.ToString(), HasSubstr("--link nccl: can't load NCCL"));
  // The transport uses the GPU that computes.
  EXPECT_THAT(
      OpenPayloads({LinkChoice::kNccl, SLUICE_FAKE_GPU, SLUICE_FAKE_GPU},
                   {BackendKind::kCuda, 5})
          .status()
          .ToString(),
      HasSubstr("there is no GPU 5"));
}

}  // namespace
}  // namespace sluice
