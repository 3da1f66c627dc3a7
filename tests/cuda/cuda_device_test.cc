#include "runtime/kernels/cuda/device/cuda_device.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/device_loss.h"
#include "common/threads/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/kernels/cuda/cuda_access.h"
#include "runtime/memory/disk/disk_file.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/trace/trace.h"
#ifdef SLUICE_CUDA_EMULATED
#include "tests/cuda/emulation/streams.h"
#endif

namespace sluice {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = uint64_t{1} << 20;

#ifdef SLUICE_CUDA_EMULATED
using emulation::Timing;
#else
enum class Timing { kAtOnce, kLateKernels, kLateCopies };
#endif

// Every test runs with the streams of the emulation doing their work at once,
// and as late as they may; on a device there is one timing.
class CudaDeviceTest : public testing::TestWithParam<Timing> {
 protected:
  void SetUp() override {
#ifdef SLUICE_CUDA_EMULATED
    emulation::SetTiming(GetParam());
#else
    if (GetParam() != Timing::kAtOnce) GTEST_SKIP() << "for the emulation";
#endif
    MakeDevice(0);
  }
  void TearDown() override {
    device_.reset();
#ifdef SLUICE_CUDA_EMULATED
    emulation::LoseDevice(cudaSuccess);
    emulation::SetTiming(Timing::kAtOnce);
    emulation::SetDeviceCount(1);
#endif
    EXPECT_EQ(budget_.used_bytes(), 0u);
  }
  void MakeDevice(int ordinal) {
    auto device = CudaDevice::Create(
        {.ordinal = ordinal, .budget = &budget_, .tracer = &tracer_});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }
  DeviceBuffer Allocate(size_t bytes) {
    auto buffer = device_->Allocate("data", bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? *std::move(buffer) : DeviceBuffer();
  }
  HostBuffer Host(size_t bytes) {
    auto buffer = HostBuffer::Create("data", bytes, &host_);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }
  static std::span<std::byte> Span(const HostBuffer& buffer) {
    return {buffer.as<std::byte>(), buffer.bytes()};
  }
  static void Fill(const HostBuffer& buffer, int seed) {
    for (size_t i = 0; i < buffer.bytes(); ++i) {
      buffer.as<unsigned char>()[i] =
          static_cast<unsigned char>((i * 7 + i / 251 + seed) % 253);
    }
  }
  absl::Status In(std::span<std::byte> device,
                  std::span<const std::byte> host) {
    IoCompletion done;
    done.Expect(1);
    device_->CopyIn(device, host, &done, {});
    return done.Wait();
  }
  absl::Status Out(std::span<std::byte> host,
                   std::span<const std::byte> device) {
    IoCompletion done;
    done.Expect(1);
    device_->CopyOut(host, device, &done, {});
    return done.Wait();
  }
  // Does what is a kernel, as far as streams are concerned.
  void Compute(const DeviceBuffer& buffer, int value) {
    ASSERT_TRUE(device_->MakeCurrent().ok());
    ASSERT_EQ(cudaMemsetAsync(buffer.data(), value, buffer.bytes(),
                              device_->compute_stream()),
              cudaSuccess);
  }

  Tracer tracer_{Tracer::Options()};
  MemoryBudget budget_{Tier::kDevice, kBytes};
  MemoryBudget host_{Tier::kHost, uint64_t{64} << 20};
  std::unique_ptr<CudaDevice> device_;
};

std::string TimingName(const testing::TestParamInfo<Timing>& info) {
  switch (info.param) {
    case Timing::kAtOnce:
      return "AtOnce";
    case Timing::kLateKernels:
      return "LateKernels";
    case Timing::kLateCopies:
      break;
  }
  return "LateCopies";
}
INSTANTIATE_TEST_SUITE_P(Timings, CudaDeviceTest,
                         testing::Values(Timing::kAtOnce, Timing::kLateKernels,
                                         Timing::kLateCopies),
                         TimingName);

TEST_P(CudaDeviceTest, BytesGoInAndOut) {
  const DeviceBuffer a = Allocate(5000);
  const DeviceBuffer b = Allocate(5000);
  const HostBuffer in = Host(5000);
  const HostBuffer out = Host(5000);
  Fill(in, 1);
  ASSERT_TRUE(In(a.span(), Span(in)).ok());
  IoCompletion done;
  done.Expect(1);
  device_->CopyWithin(b.span(), a.span(), &done);
  ASSERT_TRUE(done.Wait().ok());
  ASSERT_TRUE(Out(Span(out), b.span()).ok());
  EXPECT_EQ(std::memcmp(in.data(), out.data(), 5000), 0);
  // Copies within the device are on no copy stream.
  EXPECT_EQ(device_->totals().h2d_bytes, 5000u);
  EXPECT_EQ(device_->totals().d2h_bytes, 5000u);
  EXPECT_GT(device_->totals().h2d_busy_seconds, 0);
  EXPECT_GT(device_->totals().d2h_busy_seconds, 0);
  EXPECT_LT(device_->totals().h2d_busy_seconds, 10);
  EXPECT_TRUE(device_->MakeCurrent().ok());
}

TEST_P(CudaDeviceTest, CopiesOfNothingAreDone) {
  const DeviceBuffer a = Allocate(1);
  EXPECT_TRUE(In(a.span().first(0), {}).ok());
  EXPECT_TRUE(Out({}, a.span().first(0)).ok());
}

TEST_P(CudaDeviceTest, WhatLiesOnTheWrongSideIsRefused) {
  const DeviceBuffer device = Allocate(4096);
  std::vector<std::byte> host(4096), other(4096);
  IoCompletion done;
  const auto refused = [&](const char* word) {
    const absl::Status status = done.Wait();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(word));
    EXPECT_FALSE(IsDeviceLoss(status));
  };
  done.Expect(1);
  device_->CopyIn(host, other, &done, {});
  refused("h2d");
  done.Expect(1);
  device_->CopyIn(device.span(), device.span(), &done, {});
  refused("h2d");
  done.Expect(1);
  device_->CopyIn(device.span(), std::span(host).first(100), &done, {});
  refused("h2d: 100 bytes");
  done.Expect(1);
  device_->CopyOut(host, other, &done, {});
  refused("d2h");
  done.Expect(1);
  device_->CopyOut(device.span(), device.span(), &done, {});
  refused("d2h");
  done.Expect(1);
  device_->CopyWithin(device.span(), host, &done);
  refused("within");
  EXPECT_EQ(device_->totals().h2d_bytes + device_->totals().d2h_bytes, 0u);
  EXPECT_TRUE(device_->MakeCurrent().ok());
}

TEST_P(CudaDeviceTest, KnowsItsOwn) {
  const DeviceBuffer buffer = Allocate(4096);
  const std::byte* data = buffer.as<std::byte>();
  std::byte host{};
  EXPECT_TRUE(device_->Contains(data, kBytes));
  EXPECT_FALSE(device_->Contains(data, kBytes + 1));
  EXPECT_FALSE(device_->Contains(data - 1, 2));
  EXPECT_TRUE(device_->Touches(data - 1, 2));
  EXPECT_FALSE(device_->Contains(&host, 1));
  EXPECT_FALSE(device_->Touches(&host, 1));
  EXPECT_EQ(device_->ordinal(), 0);
}

TEST_P(CudaDeviceTest, TheBudgetIsHardAndMemoryComesBackZeroed) {
  {
    const DeviceBuffer one = Allocate(1);
    EXPECT_EQ(budget_.used_bytes(), 4096u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(one.data()) % 4096, 0u);
    const auto too_much = device_->Allocate("weights", kBytes);
    EXPECT_TRUE(absl::IsResourceExhausted(too_much.status()));
    EXPECT_THAT(too_much.status().message(),
                HasSubstr("device memory: weights asks for 1.0 MiB"));
  }
  std::vector<DeviceBuffer> pieces;
  for (int i = 0; i < 8; ++i) {
    pieces.push_back(Allocate(kBytes / 8));
    // The kernel may be under way when the memory is given back.
    Compute(pieces.back(), 0xff);
  }
  EXPECT_EQ(budget_.free_bytes(), 0u);
  for (const int i : {3, 1, 2, 7, 0, 5, 4, 6}) pieces[i] = DeviceBuffer();
  const DeviceBuffer all = Allocate(kBytes);
  const HostBuffer out = Host(kBytes);
  Fill(out, 1);
  ASSERT_TRUE(Out(Span(out), all.span()).ok());
  EXPECT_THAT(Span(out), Each(std::byte{0}));
}

TEST_P(CudaDeviceTest, TakesWhatIsLeftOfTheBudget) {
  device_.reset();
  auto charge = budget_.Charge("link staging", 100'000);
  ASSERT_TRUE(charge.ok());
  MakeDevice(0);
  const uint64_t left = (kBytes - 100'000) / 4096 * 4096;
  const DeviceBuffer all = Allocate(left);
  EXPECT_TRUE(device_->Contains(all.data(), left));
  EXPECT_FALSE(device_->Contains(all.data(), left + 1));
}

TEST_P(CudaDeviceTest, CopiesOfADirectionKeepTheirOrder) {
  constexpr int kCopies = 200;
  DeviceBuffer there = Allocate(kCopies);
  const HostBuffer host = Host(kCopies);
  const HostBuffer back = Host(kCopies);
  Fill(host, 3);
  std::vector<std::unique_ptr<IoCompletion>> done;
  for (int i = 0; i < kCopies; ++i) {
    done.push_back(std::make_unique<IoCompletion>());
    done.back()->Expect(1);
    // All copies go to the same place, so that the last one stays.
    device_->CopyIn(there.span().first(1), Span(host).subspan(i, 1),
                    done.back().get(), {"data", {{{"number", i}}}});
  }
  // The copies are looked at from the last to the first: before one that is
  // done all are.
  for (bool all = false; !all;) {
    all = true;
    bool later = false;
    for (int i = kCopies; i-- > 0;) {
      const bool ready = done[i]->ready();
      ASSERT_TRUE(ready || !later) << i;
      later = later || ready;
      all = all && ready;
    }
  }
  for (auto& d : done) ASSERT_TRUE(d->Wait().ok());
  ASSERT_TRUE(Out(Span(back).first(1), there.span().first(1)).ok());
  EXPECT_EQ(Span(back)[0], Span(host)[kCopies - 1]);
}

TEST_P(CudaDeviceTest, ThreadsShareTheCopyStreams) {
  constexpr size_t kPart = 8192;
  constexpr int kThreads = 4;
  const DeviceBuffer there = Allocate(kThreads * kPart);
  const HostBuffer in = Host(kThreads * kPart);
  const HostBuffer out = Host(kThreads * kPart);
  Fill(in, 9);
  std::vector<Thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back("copies", [&, t] {
      const auto part = [&](std::span<std::byte> all) {
        return all.subspan(t * kPart, kPart);
      };
      for (int i = 0; i < 20; ++i) {
        EXPECT_TRUE(In(part(there.span()), part(Span(in))).ok());
        EXPECT_TRUE(Out(part(Span(out)), part(there.span())).ok());
      }
    });
  }
  threads.clear();
  EXPECT_EQ(std::memcmp(in.data(), out.data(), in.bytes()), 0);
  EXPECT_EQ(device_->totals().h2d_bytes, kThreads * kPart * 20);
}

TEST_P(CudaDeviceTest, CopiesAndKernelsWaitForEachOtherOnlyWhereAsked) {
  const DeviceBuffer there = Allocate(4);
  const HostBuffer host = Host(4);
  std::memset(host.data(), 5, 4);
  ASSERT_TRUE(In(there.span(), Span(host)).ok());
  Compute(there, 6);
  ASSERT_EQ(cudaStreamSynchronize(device_->compute_stream()), cudaSuccess);
  ASSERT_TRUE(Out(Span(host), there.span()).ok());
  EXPECT_THAT(Span(host), Each(std::byte{6}));
  // A copy is done before what is computed after it.
  std::memset(host.data(), 7, 4);
  ASSERT_TRUE(In(there.span(), Span(host)).ok());
  const DeviceBuffer copy = Allocate(4);
  ASSERT_EQ(
      cudaMemcpyAsync(copy.data(), there.data(), 4, cudaMemcpyDeviceToDevice,
                      device_->compute_stream()),
      cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(device_->compute_stream()), cudaSuccess);
  ASSERT_TRUE(Out(Span(host), copy.span()).ok());
  EXPECT_THAT(Span(host), Each(std::byte{7}));
#ifdef SLUICE_CUDA_EMULATED
  if (GetParam() != Timing::kLateKernels) return;
  // A copy that does not wait for the kernel gets what was there before.
  Compute(there, 8);
  ASSERT_TRUE(Out(Span(host), there.span()).ok());
  EXPECT_THAT(Span(host), Each(std::byte{7}));
#endif
}

TEST_P(CudaDeviceTest, CopiesShowInTheTimeline) {
  DeviceBuffer there = Allocate(5000);
  const HostBuffer host = Host(5000);
  for (int i = 0; i < 3; ++i) {
    IoCompletion done;
    done.Expect(1);
    device_->CopyIn(there.span(), Span(host), &done, {"weights", {}});
    ASSERT_TRUE(done.Wait().ok());
  }
  there = DeviceBuffer();
  device_.reset();
  const std::string path = testing::TempDir() + "/cuda_device_trace.json";
  ASSERT_TRUE(tracer_.WriteJson(path).ok());
  auto file = std::unique_ptr<FILE, int (*)(FILE*)>(
      std::fopen(path.c_str(), "r"), &std::fclose);
  std::string text(1 << 16, 0);
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  EXPECT_THAT(text, HasSubstr("\"h2d\""));
  EXPECT_THAT(text, HasSubstr("\"d2h\""));
  EXPECT_THAT(text, HasSubstr("\"weights\""));
  EXPECT_THAT(text, HasSubstr("\"bytes\":5000"));
}

TEST_P(CudaDeviceTest, WhatCannotBeHadIsSaid) {
  device_.reset();
  const auto refused = [&](const CudaDeviceOptions& options) {
    return CreateCudaDevice(options).status();
  };
  absl::Status status = refused({.ordinal = 64, .budget = &budget_});
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("there is no GPU 64"));
  MemoryBudget none(Tier::kDevice, 100);
  status = refused({.budget = &none});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  MemoryBudget much(Tier::kDevice, uint64_t{1} << 46);
  status = refused({.budget = &much});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(status.message(),
              HasSubstr("--device-memory allows 67108864 MiB, but only "));
  EXPECT_FALSE(IsDeviceLoss(status));
  const auto facts = ReadGpuFacts(0);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_GE(facts->capability, 75);
  EXPECT_FALSE(facts->name.empty());
  const auto free_bytes = FreeGpuMemory(0);
  ASSERT_TRUE(free_bytes.ok()) << free_bytes.status();
  EXPECT_GT(*free_bytes, 0u);
  EXPECT_LE(*free_bytes, facts->memory_bytes);
}

TEST_P(CudaDeviceTest, HostMemoryIsPinnedAsLongAsItIsHeld) {
  const DeviceBuffer there = Allocate(8192);
  for (int i = 0; i < 3; ++i) {
    // The buffer may be at the same address again and again.
    auto host = HostBuffer::Create("data", 8192, &host_, device_.get());
    ASSERT_TRUE(host.ok()) << host.status();
    HostBuffer moved = *std::move(host);
    HostBuffer again = std::move(moved);
    again.PinFor(device_.get());
    Fill(again, i);
    const HostBuffer back = Host(8192);
#ifdef SLUICE_CUDA_EMULATED
    const size_t before = emulation::PageableBytes();
    ASSERT_TRUE(In(there.span(), Span(again)).ok());
    EXPECT_EQ(emulation::PageableBytes(), before);
#else
    ASSERT_TRUE(In(there.span(), Span(again)).ok());
#endif
    ASSERT_TRUE(Out(Span(back), there.span()).ok());
    EXPECT_EQ(std::memcmp(back.data(), again.data(), 8192), 0);
  }
  // Small buffers share their pages with others.
  auto small = HostBuffer::Create("data", 100, &host_, device_.get());
  ASSERT_TRUE(small.ok());
  EXPECT_TRUE(In(there.span().first(100), Span(*small)).ok());
}

#ifdef SLUICE_CUDA_EMULATED
TEST_P(CudaDeviceTest, MemoryThatCannotBePinnedIsCopiedAllTheSame) {
  const DeviceBuffer there = Allocate(8192);
  emulation::SetPinLimit(0);
  testing::internal::CaptureStderr();
  auto host = HostBuffer::Create("data", 8192, &host_, device_.get());
  auto more = HostBuffer::Create("data", 8192, &host_, device_.get());
  const std::string log = testing::internal::GetCapturedStderr();
  emulation::SetPinLimit(size_t{1} << 40);
  ASSERT_TRUE(host.ok() && more.ok());
  EXPECT_THAT(log, HasSubstr("GPU 0: pinning 8192 bytes: CUDA: out of memory"));
  EXPECT_THAT(log, HasSubstr("some host memory stays unpinned"));
  EXPECT_EQ(log.find("unpinned"), log.rfind("unpinned")) << "said once";
  Fill(*host, 4);
  const size_t before = emulation::PageableBytes();
  ASSERT_TRUE(In(there.span(), Span(*host)).ok());
  ASSERT_TRUE(Out(Span(*more), there.span()).ok());
  EXPECT_EQ(emulation::PageableBytes(), before + 2 * 8192);
  EXPECT_EQ(std::memcmp(host->data(), more->data(), 8192), 0);
  EXPECT_TRUE(device_->MakeCurrent().ok());
}

TEST_P(CudaDeviceTest, PinsMayOutliveTheDevice) {
  auto host = HostBuffer::Create("data", 8192, &host_, device_.get());
  ASSERT_TRUE(host.ok());
  device_.reset();
  *host = HostBuffer();
}

TEST_P(CudaDeviceTest, ASecondDeviceIsTakenOnEveryThread) {
  device_.reset();
  emulation::SetDeviceCount(2);
  MakeDevice(1);
  EXPECT_EQ(device_->ordinal(), 1);
  const DeviceBuffer there = Allocate(4096);
  const HostBuffer in = Host(4096);
  const HostBuffer out = Host(4096);
  Fill(in, 2);
  Thread("other", [&] {
    EXPECT_TRUE(In(there.span(), Span(in)).ok());
    EXPECT_TRUE(Out(Span(out), there.span()).ok());
    Compute(there, 1);
  }).Join();
  EXPECT_EQ(std::memcmp(in.data(), out.data(), 4096), 0);
  EXPECT_TRUE(device_->MakeCurrent().ok());
}

TEST_P(CudaDeviceTest, ALostDeviceEndsAllCopies) {
  const DeviceBuffer there = Allocate(4096);
  const HostBuffer host = Host(4096);
  ASSERT_TRUE(In(there.span(), Span(host)).ok());
  std::vector<std::unique_ptr<IoCompletion>> done;
  for (int i = 0; i < 10; ++i) {
    if (i == 5) {
      emulation::LoseDevice(cudaErrorIllegalAddress);
    }
    done.push_back(std::make_unique<IoCompletion>());
    done.back()->Expect(1);
    device_->CopyIn(there.span(), Span(host), done.back().get(), {});
  }
  for (size_t i = 0; i < done.size(); ++i) {
    const absl::Status status = done[i]->Wait();
    // Copies before the loss may have come to their end.
    if (i < 5 && status.ok()) continue;
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_TRUE(IsDeviceLoss(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("GPU 0: "));
    EXPECT_THAT(status.message(), HasSubstr("illegal memory access"));
  }
  EXPECT_TRUE(IsDeviceLoss(device_->MakeCurrent()));
  // The device is lost for good, whatever CUDA says from now on.
  emulation::LoseDevice(cudaSuccess);
  EXPECT_TRUE(IsDeviceLoss(Out(Span(host), there.span())));
}

TEST_P(CudaDeviceTest, ACopyFindsWhatAKernelDid) {
  const DeviceBuffer there = Allocate(4096);
  const HostBuffer host = Host(4096);
  emulation::LoseDevice(cudaErrorLaunchFailure, "unspecified launch failure");
  const absl::Status status = In(there.span(), Span(host));
  EXPECT_TRUE(IsDeviceLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("unspecified launch failure"));
  EXPECT_TRUE(IsDeviceLoss(device_->MakeCurrent()));
  EXPECT_TRUE(IsDeviceLoss(device_->Allocate("weights", 4096).status()));
  EXPECT_EQ(budget_.used_bytes(), there.bytes());
  // Another device cannot be made.
  EXPECT_TRUE(IsDeviceLoss(
      CreateCudaDevice({.ordinal = 0, .budget = &budget_}).status()));
}

TEST(CudaDeviceAbsentTest, AMachineWithoutAGpuSaysSo) {
  const auto say = [] {
    const absl::Status status = ReadGpuFacts(0).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    return std::string(status.message());
  };
  emulation::SetDeviceCount(0);
  EXPECT_EQ(say(),
            "there is no GPU that this process can use: nvidia-smi may say "
            "more: CUDA: no CUDA-capable device is detected; --device cpu does "
            "without");
  emulation::SetDriverVersion(11080);
  EXPECT_EQ(say(),
            "there is no GPU that this process can use: the NVIDIA driver is "
            "for CUDA 11.8, and this build is of CUDA 12.0; --device cpu does "
            "without");
  emulation::SetDriverVersion(0);
  EXPECT_EQ(say(),
            "there is no GPU that this process can use: no NVIDIA driver is "
            "installed; --device cpu does without");
  emulation::SetDriverVersion(13000);
  emulation::SetDeviceCount(1);
  EXPECT_TRUE(ReadGpuFacts(0).ok());
}
#endif

}  // namespace
}  // namespace sluice
