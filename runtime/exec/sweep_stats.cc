#include "runtime/exec/sweep_stats.h"

#include <algorithm>
#include <iterator>

namespace sluice {
namespace {

constexpr double SweepStats::*kSeconds[] = {
    &SweepStats::projection_seconds,
    &SweepStats::attention_seconds,
    &SweepStats::dequantize_seconds,
    &SweepStats::head_seconds,
    &SweepStats::weight_stall_seconds,
    &SweepStats::kv_stall_seconds,
    &SweepStats::activation_stall_seconds,
    &SweepStats::attention_stall_seconds,
    &SweepStats::host_attention_seconds,
    &SweepStats::h2d_seconds,
    &SweepStats::d2h_seconds,
    &SweepStats::disk_read_seconds,
    &SweepStats::disk_write_seconds};
constexpr uint64_t SweepStats::*kBytes[] = {
    &SweepStats::h2d_bytes,
    &SweepStats::d2h_bytes,
    &SweepStats::disk_read_bytes,
    &SweepStats::disk_write_bytes,
    &SweepStats::weight_read_bytes,
    &SweepStats::kv_read_bytes,
    &SweepStats::kv_write_bytes,
    &SweepStats::activation_read_bytes,
    &SweepStats::activation_write_bytes};
// A field that is added to SweepStats must be added here.
static_assert(sizeof(SweepStats) == sizeof(double) * std::size(kSeconds) +
                                        sizeof(uint64_t) * std::size(kBytes));

constexpr uint64_t RealisedPlacement::*kPlaced[] = {
    &RealisedPlacement::embedding_bytes,
    &RealisedPlacement::embedding_host_bytes,
    &RealisedPlacement::weight_bytes,
    &RealisedPlacement::weight_host_bytes,
    &RealisedPlacement::weight_device_bytes,
    &RealisedPlacement::kv_bytes,
    &RealisedPlacement::kv_host_bytes,
    &RealisedPlacement::kv_device_bytes,
    &RealisedPlacement::activation_bytes,
    &RealisedPlacement::activation_host_bytes,
    &RealisedPlacement::activation_device_bytes};
static_assert(sizeof(RealisedPlacement) ==
              sizeof(uint64_t) * std::size(kPlaced));

}  // namespace

SweepStats& operator+=(SweepStats& a, const SweepStats& b) {
  for (const auto field : kSeconds) a.*field += b.*field;
  for (const auto field : kBytes) a.*field += b.*field;
  return a;
}

SweepStats operator-(SweepStats a, const SweepStats& b) {
  for (const auto field : kSeconds) a.*field -= b.*field;
  for (const auto field : kBytes) a.*field -= b.*field;
  return a;
}

void AddParallel(const SweepStats& one, SweepStats* all) {
  for (const auto field : kSeconds) {
    all->*field = std::max(all->*field, one.*field);
  }
  for (const auto field : kBytes) all->*field += one.*field;
}

RealisedPlacement& operator+=(RealisedPlacement& a,
                              const RealisedPlacement& b) {
  for (const auto field : kPlaced) a.*field += b.*field;
  return a;
}

}  // namespace sluice
