#include "tests/bench/cuda/device_rates.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "absl/cleanup/cleanup.h"
#include "common/status_macros.h"
#include "runtime/kernels/cuda/device/cuda_status.h"

namespace sluice::bench {
namespace {

constexpr int kRepeats = 9;
// The least time of a repeat, long beside what an event's clock can tell.
constexpr double kRepeatSeconds = 0.015;
constexpr double kWarmSeconds = 0.05;
constexpr int kMaxCalls = 2000;

}  // namespace

absl::StatusOr<Buffer> Buffer::Zeros(size_t bytes) {
  Buffer buffer;
  void* data = nullptr;
  SLUICE_RETURN_IF_ERROR(
      CudaStatus(cudaMalloc(&data, std::max<size_t>(bytes, 1)),
                 absl::StrCat("allocating ", bytes, " bytes")));
  buffer.data_.reset(data);
  buffer.bytes_ = bytes;
  SLUICE_RETURN_IF_ERROR(
      CudaStatus(cudaMemset(data, 0, bytes), "clearing memory"));
  return buffer;
}

absl::StatusOr<Buffer> Buffer::Random(size_t bytes) {
  constexpr size_t kBlock = 8 << 20;
  static const std::vector<unsigned char>& block = *[] {
    auto* made = new std::vector<unsigned char>(kBlock);
    std::mt19937 random(1);
    for (auto& byte : *made) byte = random() % 0x3c;
    return made;
  }();
  SLUICE_ASSIGN_OR_RETURN(Buffer buffer, Zeros(bytes));
  for (size_t at = 0; at < bytes; at += kBlock) {
    SLUICE_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpy(buffer.data() + at, block.data(),
                   std::min(kBlock, bytes - at), cudaMemcpyHostToDevice),
        "filling memory"));
  }
  return buffer;
}

absl::StatusOr<Buffer> Buffer::Copy(const void* from, size_t bytes) {
  SLUICE_ASSIGN_OR_RETURN(Buffer buffer, Zeros(bytes));
  SLUICE_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpy(buffer.data(), from, bytes, cudaMemcpyHostToDevice),
                 "copying to the device"));
  return buffer;
}

absl::StatusOr<Spread> Bench::Time(
    absl::FunctionRef<absl::Status(cudaStream_t)> launch) const {
  cudaEvent_t begin = nullptr, end = nullptr;
  const absl::Cleanup destroy = [&] {
    if (begin != nullptr) cudaEventDestroy(begin);
    if (end != nullptr) cudaEventDestroy(end);
  };
  for (cudaEvent_t* event : {&begin, &end}) {
    SLUICE_RETURN_IF_ERROR(CudaStatus(
        cudaEventCreateWithFlags(event, cudaEventDefault), "making an event"));
  }
  const auto run = [&](int calls) -> absl::StatusOr<double> {
    SLUICE_RETURN_IF_ERROR(
        CudaStatus(cudaEventRecord(begin, stream), "timing"));
    for (int i = 0; i < calls; ++i) SLUICE_RETURN_IF_ERROR(launch(stream));
    SLUICE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(end, stream), "timing"));
    SLUICE_RETURN_IF_ERROR(
        CudaStatus(cudaEventSynchronize(end), "waiting for what is timed"));
    float milliseconds = 0;
    SLUICE_RETURN_IF_ERROR(
        CudaStatus(cudaEventElapsedTime(&milliseconds, begin, end), "timing"));
    return std::max<double>(milliseconds, 1e-6) * 1e-3 / calls;
  };
  if (tiny) {
    SLUICE_ASSIGN_OR_RETURN(const double seconds, run(1));
    return Spread{seconds, seconds, seconds};
  }
  SLUICE_ASSIGN_OR_RETURN(double each, run(1));
  for (double warm = 0; warm < kWarmSeconds;) {
    const int calls = static_cast<int>(
        std::clamp(kRepeatSeconds / each, 1.0, double{kMaxCalls}));
    SLUICE_ASSIGN_OR_RETURN(each, run(calls));
    warm += each * calls;
  }
  const int calls = static_cast<int>(
      std::clamp(kRepeatSeconds / each, 1.0, double{kMaxCalls}));
  std::vector<double> seconds;
  for (int i = 0; i < kRepeats; ++i) {
    SLUICE_ASSIGN_OR_RETURN(seconds.emplace_back(), run(calls));
  }
  std::sort(seconds.begin(), seconds.end());
  return Spread{seconds[kRepeats / 2], seconds.front(), seconds.back()};
}

void AddRate(const Spread& seconds, double amount, const std::string& unit,
             nlohmann::json* row) {
  const double scale = unit == "GB/s" ? 1e-9 : 1e-12;
  const std::string name = unit == "GB/s" ? "gb_s" : "tflop_s";
  (*row)["microseconds"] = seconds.median * 1e6;
  (*row)[name] = amount / seconds.median * scale;
  (*row)[name + "_low"] = amount / seconds.high * scale;
  (*row)[name + "_high"] = amount / seconds.low * scale;
}

absl::StatusOr<nlohmann::json> CopyRates(const Bench& bench) {
  const size_t bytes = bench.tiny ? 1 << 16 : size_t{1} << 30;
  SLUICE_ASSIGN_OR_RETURN(const Buffer from, Buffer::Random(bytes));
  SLUICE_ASSIGN_OR_RETURN(const Buffer to, Buffer::Zeros(bytes));
  SLUICE_ASSIGN_OR_RETURN(
      const Spread seconds, bench.Time([&](cudaStream_t stream) {
        return CudaStatus(cudaMemcpyAsync(to.data(), from.data(), bytes,
                                          cudaMemcpyDeviceToDevice, stream),
                          "copying on the device");
      }));
  nlohmann::json row = {{"bytes", bytes}};
  AddRate(seconds, 2.0 * bytes, "GB/s", &row);
  return nlohmann::json::array({row});
}

}  // namespace sluice::bench
