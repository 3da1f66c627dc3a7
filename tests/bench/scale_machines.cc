#include "tests/bench/scale_machines.h"

#include <cstdint>

#include "tests/bench/paper/fitted.h"

// Peak rates are the data sheets', derated: what large products, copies and
// reads reach in practice. One factor for each kind, the same for all machines;
// where FlexGen's published runs told a constant (tests/bench/paper), it stands
// instead.

namespace sluice {
namespace {

constexpr double kProducts = 0.6;   // of dense peak: large matrix products
constexpr double kMemory = 0.8;     // of peak bandwidth: plain reads
constexpr double kAttention = 0.6;  // of plain reads: K and V, in pages
constexpr double kPrompts = 0.4;    // of products: attention of prompts
constexpr double kWires = 0.8;      // of PCIe and of the disk's sequential rate
constexpr double kNetwork = 0.9;    // of a link: TCP, HTTP/2 and frames
constexpr double kDeviceRoom = 0.9;  // of a device's memory: the rest is its
constexpr double kHostRoom = 0.85;   // driver's, of the host's its system's
constexpr double kDiskRoom = 0.8;

// Seconds that a layer's calls cost beside their work: about ten kernels of 5
// us, or ten parallel regions of 10 us on 32 cores.
constexpr double kDeviceLayerSeconds = 50e-6;
constexpr double kHostLayerSeconds = 100e-6;
// Bytes that norms, activations and residuals move for each row and element of
// the hidden state, and sampling for each logit.
constexpr double kBytesPerElement = 40;
constexpr double kBytesPerLogit = 8;

constexpr double kGiB = 1024.0 * 1024 * 1024;

// The figures of a data sheet.
struct Sheet {
  double flops = 0;   // dense, 16 bits
  double memory = 0;  // bytes a second
};

// A roofline without its corner: weights in 16 bits are read while rows are
// multiplied, and what is between the bounds hides but a part of the lesser.
RateCurve Roofline(double flops, double memory) {
  std::vector<RateCurve::Point> points;
  for (double rows = 1; rows <= 8192; rows *= 2) {
    points.push_back({rows, 1 / (1 / flops + 1 / (rows * memory))});
  }
  return RateCurve(std::move(points));
}

ComputeProfile ComputeOf(const Sheet& sheet, double layer_seconds) {
  ComputeProfile compute;
  const double memory = kMemory * sheet.memory;
  const double flops = kProducts * sheet.flops;
  compute.memory_bytes_per_second = memory;
  compute.products = {
      {DType::kBFloat16, WeightFormat::kFull, Roofline(flops, memory)}};
  compute.attention = {{KvFormat::kBFloat16,
                        RateCurve::Constant(kAttention * memory),
                        RateCurve::Constant(kPrompts * flops)}};
  compute.quantize_bytes_per_second = memory / 4;
  compute.dequantize_bytes_per_second = memory / 4;
  compute.layer_seconds = layer_seconds;
  compute.row_element_seconds = kBytesPerElement / memory;
  compute.logit_seconds = kBytesPerLogit / memory;
  compute.share_by_threads = RateCurve::Constant(1);
  return compute;
}

uint64_t Share(double share, double bytes) {
  return static_cast<uint64_t>(share * bytes);
}

MachineProfile MachineOf(const Sheet& host, double memory, int threads,
                         double disk_bytes, double read, double write) {
  MachineProfile machine;
  machine.host = ComputeOf(host, kHostLayerSeconds);
  machine.threads = threads;
  machine.host_memory_bytes = Share(kHostRoom, memory);
  machine.disk_bytes = Share(kDiskRoom, disk_bytes);
  machine.disk.read_bytes_per_second = kWires * read;
  machine.disk.write_bytes_per_second = kWires * write;
  machine.step_seconds = 2e-4;  // coordinator and queues, without the wire
  return machine;
}

void AddDevice(absl::string_view name, const Sheet& sheet, double memory,
               double bus, MachineProfile* machine) {
  machine->device = std::string(name);
  machine->device_compute = ComputeOf(sheet, kDeviceLayerSeconds);
  machine->device_memory_bytes = Share(kDeviceRoom, memory);
  machine->host_to_device_bytes_per_second = kWires * bus;
  machine->device_to_host_bytes_per_second = kWires * bus;
}

// FlexGen's machine (section 6): 32 threads, 16 cores of a Xeon at 2 GHz, 208
// GB, 1.5 TB of NVMe. NVIDIA T4 data sheet: 65 Tflop/s in FP16, 320 GB/s, 16
// GB, of which FlexGen counts 15 GiB, PCIe 3 x16: 15.75 GB/s.
MachineProfile T4() {
  const FittedConstants fitted = FittedFor("t4");
  // 16 cores x 2 GHz x 64 float32 operations; six channels of DDR4-2666.
  MachineProfile machine =
      MachineOf({16 * 2e9 * 64, 128e9}, 208e9, 16, 1500 * kGiB, 2e9, 1e9);
  AddDevice("cuda:0: T4", {65e12, 320e9}, 15 * kGiB, 15.75e9, &machine);
  ComputeProfile& device = machine.device_compute;
  device.products[0].flops_by_rows =
      Roofline(fitted.product_flops, device.memory_bytes_per_second);
  device.attention[0].prefill_flops_by_context =
      RateCurve::Constant(kPrompts * fitted.product_flops);
  device.dequantize_bytes_per_second = fitted.dequantize_bytes;
  machine.host.attention[0].decode_bytes_by_context =
      RateCurve::Constant(fitted.host_attention_bytes);
  machine.disk.read_bytes_per_second = fitted.disk_read_bytes;
  // FlexGen, section 6.
  machine.disk.write_bytes_per_second = 1e9;
  return machine;
}

// NVIDIA GA102 white paper: 71 Tflop/s in FP16 with FP32 sums, dense; 936
// GB/s, 24 GB; PCIe 4 x16: 31.5 GB/s. In a desktop: 16 cores of Zen 3 at 3.4
// GHz x 32 operations, 128 GB in two channels of DDR4-3200, a PCIe 4 NVMe disk
// of 2 TB (Samsung 980 PRO's sheet: 7.0 and 5.1 GB/s).
MachineProfile Rtx3090() {
  MachineProfile machine =
      MachineOf({16 * 3.4e9 * 32, 51.2e9}, 128e9, 16, 2e12, 7.0e9, 5.1e9);
  AddDevice("cuda:0: RTX 3090", {71e12, 936e9}, 24 * kGiB, 31.5e9, &machine);
  return machine;
}

// NVIDIA H100 data sheet, SXM5: 989 Tflop/s in bfloat16, dense; 3.35 TB/s, 80
// GB; PCIe 5 x16: 63 GB/s. An eighth of DGX H100's host (its sheet: 112 cores
// of Xeon 8480C at 2 GHz with AMX, 2048 operations each; 2 TB in 16 channels
// of DDR5-4800; 8 disks of 3.84 TB, here 6.8 and 4.0 GB/s each).
MachineProfile H100() {
  MachineProfile machine = MachineOf({14 * 2e9 * 2048, 16 * 38.4e9 / 8}, 256e9,
                                     14, 3.84e12, 6.8e9, 4.0e9);
  AddDevice("cuda:0: H100", {989e12, 3.35e12}, 80e9, 63e9, &machine);
  return machine;
}

// AMD EPYC 9354's sheet: 32 cores at 3.25 GHz, 12 channels of DDR5-4800: 460.8
// GB/s. Zen 4 does 64 operations in bfloat16 a cycle (VDPBF16PS, two of 256
// bits). 384 GB, and a PCIe 4 disk of 3.84 TB as above.
MachineProfile Zen4() {
  MachineProfile machine =
      MachineOf({32 * 3.25e9 * 64, 460.8e9}, 384e9, 32, 3.84e12, 6.8e9, 4.0e9);
  machine.device = "AMD EPYC 9354";
  return machine;
}

}  // namespace

std::vector<SheetMachine> SheetMachines() {
  return {
      {"T4", 1.87, "on demand: 32 virtual cores 1.52, T4 0.35", T4()},
      {"3090", 0.30, "rented from people: 0.22 to 0.45", Rtx3090()},
      {"H100", 3.00, "on demand, by the GPU: 2 to 4", H100()},
      {"CPU", 1.20, "on demand: 0.04 a core", Zen4()},
  };
}

LinkProfile SheetLink(double gbit, double latency_seconds) {
  return {.peer = "",
          .bytes_per_second = kNetwork * gbit * 1e9 / 8,
          .latency_seconds = latency_seconds};
}

}  // namespace sluice
