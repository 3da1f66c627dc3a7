#pragma once

#include <cstdint>

namespace sluice {

// The parts of a stage's time, and the bytes that disk and device moved, since
// it was loaded (FlexGen, table 4). Seconds are the sweep thread's: they add up
// to its busy time; data moves meanwhile.
struct SweepStats {
  // The seconds of computing.
  double projection_seconds = 0;  // embedding, attention's GEMMs, MLP
  double attention_seconds = 0;
  double dequantize_seconds = 0;  // dequantizing layers
  double head_seconds = 0;        // head and sampling
  // The seconds of waiting.
  double weight_stall_seconds = 0;
  double kv_stall_seconds = 0;
  double activation_stall_seconds = 0;
  double attention_stall_seconds = 0;  // for attention on the host
  // The host's attention for a device, which meanwhile may compute.
  double host_attention_seconds = 0;
  // The time in which the disk, or copies to or from the device, had work, and
  // the bytes moved.
  double disk_read_seconds = 0;
  double disk_write_seconds = 0;
  double h2d_seconds = 0;  // host to device
  double d2h_seconds = 0;
  uint64_t h2d_bytes = 0;
  uint64_t d2h_bytes = 0;
  uint64_t disk_read_bytes = 0;
  uint64_t disk_write_bytes = 0;
  // The bytes that sweeps read and wrote on disk, by what they are of.
  uint64_t weight_read_bytes = 0;
  uint64_t kv_read_bytes = 0;
  uint64_t kv_write_bytes = 0;
  uint64_t activation_read_bytes = 0;
  uint64_t activation_write_bytes = 0;

  double compute_seconds() const {
    return projection_seconds + attention_seconds + dequantize_seconds +
           head_seconds;
  }
  double stall_seconds() const {
    return weight_stall_seconds + kv_stall_seconds + activation_stall_seconds +
           attention_stall_seconds;
  }
};

SweepStats& operator+=(SweepStats& a, const SweepStats& b);
// The growth since `b`, an earlier state of `a`.
SweepStats operator-(SweepStats a, const SweepStats& b);
// Adds what ran at the same time: seconds are the greatest, bytes the sum.
void AddParallel(const SweepStats& one, SweepStats* all);

// The cost of one kind of data to the sweep, since the load.
struct StreamTotals {
  double stall_seconds = 0;  // that the sweep waited for it
  uint64_t read_bytes = 0;   // that the disk carried
  uint64_t write_bytes = 0;

  StreamTotals& operator+=(const StreamTotals& other) {
    stall_seconds += other.stall_seconds;
    read_bytes += other.read_bytes;
    write_bytes += other.write_bytes;
    return *this;
  }
};

// The places of a stage's weights, KV cache and activations. What is on neither
// host nor device is on disk.
struct RealisedPlacement {
  // Parts of the weights; no part of the policy's shares.
  uint64_t embedding_bytes = 0, embedding_host_bytes = 0;
  uint64_t weight_bytes = 0, weight_host_bytes = 0, weight_device_bytes = 0;
  uint64_t kv_bytes = 0, kv_host_bytes = 0, kv_device_bytes = 0;
  // The room for a block's activations, between turns (see ActivationStager).
  uint64_t activation_bytes = 0, activation_host_bytes = 0,
           activation_device_bytes = 0;
};

RealisedPlacement& operator+=(RealisedPlacement& a, const RealisedPlacement& b);

}  // namespace sluice
