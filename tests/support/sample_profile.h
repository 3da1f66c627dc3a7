#pragma once

#include "common/machine_profile.h"

namespace sluice {

inline ComputeProfile SampleCompute() {
  ComputeProfile c;
  c.memory_bytes_per_second = 4e10;
  c.products = {{DType::kBFloat16, WeightFormat::kFull,
                 RateCurve({{1, 1e10}, {128, 8e11}, {2048, 9e11}})},
                {DType::kBFloat16, WeightFormat::kInt4,
                 RateCurve({{1, 2e10}, {2048, 8.5e11}})},
                {DType::kFloat32, WeightFormat::kFull,
                 RateCurve({{1, 5e9}, {2048, 4e11}})}};
  c.codes = {
      {"Q4_K", DType::kBFloat16, RateCurve({{1, 2e10}, {256, 7e11}}), 2e9}};
  c.attention = {
      {KvFormat::kBFloat16, RateCurve({{128, 2e10}, {4096, 3e10}}),
       RateCurve({{128, 1e11}, {4096, 2e11}})},
      {KvFormat::kInt4, RateCurve::Constant(8e9), RateCurve::Constant(1.5e11)}};
  c.quantize_bytes_per_second = 3e9;
  c.dequantize_bytes_per_second = 2e10;
  c.layer_seconds = 2e-5;
  c.row_element_seconds = 1.25e-9;
  c.logit_seconds = 1e-10;
  c.share_by_threads = RateCurve({{1, 0.52}, {2, 1}});
  return c;
}

// Every field is set, and Check() is OK.
inline MachineProfile SampleProfile() {
  MachineProfile p;
  p.name = "node-1";
  p.machine = "host-1";
  p.fingerprint = "0123456789abcdef";
  p.device = "cpu: Fast CPU, AVX-512 bf16";
  p.remarks = {"the disk is slow", "say \"why\""};
  p.device_memory_bytes = uint64_t{16} << 30;
  p.host_memory_bytes = (uint64_t{64} << 30) + 1;
  p.disk_bytes = uint64_t{1} << 40;
  p.threads = 2;
  p.cores = 2;
  p.ranks = 2;
  p.exchange = {2.5e10, 1.5e-5};
  p.part_of = "host-1";
  p.host = SampleCompute();
  p.device_compute = SampleCompute();
  p.device_compute.memory_bytes_per_second = 3e11;
  p.host_to_device_bytes_per_second = 1.2e10;
  p.device_to_host_bytes_per_second = 1.1e10;
  p.disk.read_bytes_per_second = 3.3e9;
  p.disk.write_bytes_per_second = 0.1e9 / 3;
  p.disk.rates = {{1 << 20, 32, 3.3e9, 1e9}, {4096, 1, 1e7, 2e7}};
  p.disk.compute_seconds_per_byte = 2.5e-11;
  p.disk.direct = false;
  p.links = {{"", 1e9, 1e-4}, {"10.0.0.2:7080", 1.25e9, 5e-5}};
  p.step_seconds = 3e-4;
  return p;
}

// SampleProfile() of a machine without a device.
inline MachineProfile SampleCpuProfile() {
  MachineProfile p = SampleProfile();
  p.device_memory_bytes = 0;
  p.device_compute = ComputeProfile();
  p.host_to_device_bytes_per_second = 0;
  p.device_to_host_bytes_per_second = 0;
  return p;
}

}  // namespace sluice
