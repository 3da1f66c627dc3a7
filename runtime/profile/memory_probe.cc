#include "runtime/profile/memory_probe.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/profile/measure.h"

namespace sluice {
namespace {

constexpr size_t kReadBytes = size_t{256} << 20;
constexpr size_t kReadTask = size_t{1} << 20;
constexpr size_t kCopyBytes = size_t{64} << 20;
constexpr size_t kCopyPart = size_t{4} << 20;
constexpr size_t kWithinBytes = size_t{512} << 20;
constexpr int kWithinInFlight = 8;

// Returns as much of `wanted` as fits half of a budget's room, in whole parts.
size_t RoomFor(size_t wanted, size_t part, const MemoryBudget& budget) {
  const uint64_t room = std::min<uint64_t>(wanted, budget.free_bytes() / 2);
  return std::max<size_t>(part, room / part * part);
}

// Adds 8 bytes at a time to several sums, so that only memory limits it.
uint64_t SumOf(const std::byte* p, size_t bytes) {
  uint64_t sums[16] = {};
  for (size_t i = 0; i + 128 <= bytes; i += 128) {
    uint64_t line[16];
    std::memcpy(line, p + i, sizeof(line));
    for (int j = 0; j < 16; ++j) sums[j] += line[j];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

absl::StatusOr<double> MeasureMemoryReads(ComputePool* pool,
                                          MemoryBudget* budget, double seconds,
                                          const std::atomic<bool>* cancelled) {
  const size_t bytes = RoomFor(kReadBytes, kReadTask, *budget);
  SLUICE_ASSIGN_OR_RETURN(const HostBuffer buffer,
                          HostBuffer::Create("profile", bytes, budget));
  // Pages are written first, as unwritten ones all map to one zero page.
  std::memset(buffer.data(), 1, bytes);
  std::atomic<uint64_t> sink{0};
  SLUICE_ASSIGN_OR_RETURN(
      const double once, TimeCalls(seconds, 3, cancelled, [&] {
        pool->ParallelFor(
            static_cast<int>(bytes / kReadTask), [&](int task, int) {
              const std::byte* part = buffer.as<std::byte>() +
                                      static_cast<size_t>(task) * kReadTask;
              sink.fetch_add(SumOf(part, kReadTask), std::memory_order_relaxed);
            });
        return absl::OkStatus();
      }));
  return static_cast<double>(bytes) / once;
}

absl::StatusOr<CopyRates> MeasureCopies(Device* device,
                                        MemoryBudget* device_budget,
                                        MemoryBudget* host_budget,
                                        double seconds,
                                        const std::atomic<bool>* cancelled) {
  const size_t bytes = std::min(RoomFor(kCopyBytes, kCopyPart, *device_budget),
                                RoomFor(kCopyBytes, kCopyPart, *host_budget));
  SLUICE_ASSIGN_OR_RETURN(
      const HostBuffer host,
      HostBuffer::Create("profile", bytes, host_budget, device));
  SLUICE_ASSIGN_OR_RETURN(const DeviceBuffer there,
                          device->Allocate("profile", bytes));
  std::memset(host.data(), 1, bytes);
  const std::span<std::byte> here(host.as<std::byte>(), bytes);
  CopyRates rates;
  for (const bool in : {true, false}) {
    SLUICE_ASSIGN_OR_RETURN(
        const double once, TimeCalls(seconds / 2, 3, cancelled, [&] {
          IoCompletion done;
          done.Expect(static_cast<int>(bytes / kCopyPart));
          for (size_t at = 0; at < bytes; at += kCopyPart) {
            const auto a = there.span().subspan(at, kCopyPart);
            const auto b = here.subspan(at, kCopyPart);
            if (in) {
              device->CopyIn(a, b, &done);
            } else {
              device->CopyOut(b, a, &done);
            }
          }
          return done.Wait();
        }));
    (in ? rates.to_device_bytes_per_second : rates.to_host_bytes_per_second) =
        static_cast<double>(bytes) / once;
  }
  return rates;
}

absl::StatusOr<double> MeasureDeviceMemory(Device* device,
                                           const MemoryBudget& device_budget,
                                           double seconds,
                                           const std::atomic<bool>* cancelled) {
  const size_t bytes = RoomFor(kWithinBytes, kCopyPart, device_budget) / 2;
  SLUICE_ASSIGN_OR_RETURN(const DeviceBuffer from,
                          device->Allocate("profile", bytes));
  SLUICE_ASSIGN_OR_RETURN(const DeviceBuffer to,
                          device->Allocate("profile", bytes));
  SLUICE_ASSIGN_OR_RETURN(const double once,
                          TimeCalls(seconds, 3, cancelled, [&] {
                            IoCompletion done;
                            done.Expect(kWithinInFlight);
                            for (int i = 0; i < kWithinInFlight; ++i) {
                              device->CopyWithin(to.span(), from.span(), &done);
                            }
                            return done.Wait();
                          }));
  return 2.0 * kWithinInFlight * static_cast<double>(bytes) / once;
}

}  // namespace sluice
