#pragma once

#include <string>

#include "common/machine_profile.h"
#include "scheduler/plan/plan.h"

// Made-up machines and models for tests of the planner.

namespace sluice {

inline ComputeProfile TestCompute(double flops, double memory_rate) {
  ComputeProfile compute;
  compute.memory_bytes_per_second = memory_rate;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const WeightFormat format :
         {WeightFormat::kFull, WeightFormat::kInt8, WeightFormat::kInt4}) {
      compute.products.push_back(
          {dtype, format,
           RateCurve({{1, flops / 50}, {32, flops / 2}, {256, flops}})});
    }
  }
  for (const KvFormat format : {KvFormat::kFloat32, KvFormat::kBFloat16,
                                KvFormat::kInt8, KvFormat::kInt4}) {
    compute.attention.push_back({format, RateCurve::Constant(memory_rate / 2),
                                 RateCurve::Constant(flops / 4)});
  }
  compute.quantize_bytes_per_second = memory_rate / 20;
  compute.dequantize_bytes_per_second = memory_rate / 10;
  compute.layer_seconds = 2e-5;
  compute.row_element_seconds = 1e-10;
  compute.logit_seconds = 1e-9;
  compute.share_by_threads = RateCurve({{1, 0.15}, {8, 1}});
  return compute;
}

// A machine without a device.
inline MachineProfile TestMachine(const std::string& name, double memory,
                                  double disk, double speed = 1) {
  MachineProfile m;
  m.name = name;
  m.machine = name;
  m.host_memory_bytes = static_cast<uint64_t>(memory);
  m.disk_bytes = static_cast<uint64_t>(disk);
  m.threads = 8;
  m.host = TestCompute(1e12 * speed, 4e10 * speed);
  if (disk > 0) {
    m.disk.read_bytes_per_second = 2e9;
    m.disk.write_bytes_per_second = 1e9;
  }
  m.links.push_back({"", 1e9, 1e-4});
  m.step_seconds = 1e-4;
  return m;
}

inline MachineProfile TestDeviceMachine(const std::string& name, double device,
                                        double memory, double disk) {
  MachineProfile m = TestMachine(name, memory, disk);
  m.device_memory_bytes = static_cast<uint64_t>(device);
  m.device_compute = TestCompute(5e13, 3e11);
  m.host_to_device_bytes_per_second = 1.2e10;
  m.device_to_host_bytes_per_second = 1.2e10;
  return m;
}

// About a billion parameters for 20 layers: 2 GB in bfloat16.
inline DecoderSpec TestModel(int layers = 20) {
  DecoderSpec model;
  model.num_layers = layers;
  model.hidden_size = model.embed_dim = 2048;
  model.num_heads = 16;
  model.num_kv_heads = 16;
  model.head_dim = 128;
  model.rotaries = {{.dim = model.head_dim}};
  model.intermediate_size = 5632;
  model.vocab_size = 32000;
  return model;
}

inline PlanRequest TestRequest(std::vector<MachineProfile> machines,
                               int layers = 20) {
  PlanRequest request;
  request.model = TestModel(layers);
  request.workload.classes = {{.prompt = 256, .output = 64, .count = 2000}};
  request.machines = std::move(machines);
  return request;
}

}  // namespace sluice
