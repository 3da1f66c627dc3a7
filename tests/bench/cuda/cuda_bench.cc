// Rates of the device's kernels, beside what the device can do:
//
//   cuda_bench [--tiny] [PART...]
//
// Parts: copy, decode, prefill, quantized, products, sampling; all of them if
// none is named. One JSON object to stdout:
//
//   device     what it is; its memory's and tensor cores' rates by its data
//              sheet, where this knows it
//   copy       a device-to-device copy, bytes read and written
//   decode     attention of one new token for each of many sequences: GB/s of K
//              and V, as shares of the data sheet's and of the copy's
//   prefill    attention within prompts: TFLOP/s of what causality leaves
//   quantized  expanding 4- and 8-bit matrices, and products of a few rows with
//              them: GB/s of the matrix as it lies in memory
//   products   cuBLASLt as the backend uses it: TFLOP/s, and as a share of the
//              best of all algorithms that its heuristics name
//   sampling   tokens sampled from rows of logits: GB/s of logits, each counted
//              once, and as a share of the data sheet's
//
// A part that fails has a member "error" in its place, and the exit status is
// 1. Each figure is the median of nine repeats of many calls between two
// events, with the slowest and the fastest. --tiny is for the emulation of
// tests/cuda, whose times mean nothing.

#include <cstdio>
#include <cstring>
#include <set>

#include "common/status_macros.h"
#include "runtime/kernels/cuda/device/cuda_status.h"
#include "tests/bench/cuda/device_rates.h"

namespace sluice::bench {
namespace {

#ifdef SLUICE_CUDA_EMULATED
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

// NVIDIA's data sheets say these rates: memory in GB/s, dense bfloat16 products
// (of half, on a T4) in TFLOP/s. A device's sheet is the first whose name its
// name contains.
struct DataSheet {
  const char* name;
  double memory_gb_s, bf16_tflop_s;
};
constexpr DataSheet kDataSheets[] = {{"H200", 4800, 989.4},
                                     {"H100 80GB HBM3", 3350, 989.4},
                                     {"H100 PCIe", 2039, 756},
                                     {"H100 NVL", 3938, 835},
                                     {"A100-SXM4-80GB", 2039, 312},
                                     {"A100-SXM4-40GB", 1555, 312},
                                     {"A100 80GB PCIe", 1935, 312},
                                     {"A100-PCIE-40GB", 1555, 312},
                                     {"L40S", 864, 362},
                                     {"L4", 300, 121},
                                     {"A10G", 600, 70},
                                     {"A10", 600, 125},
                                     {"RTX 4090", 1008, 165.2},
                                     {"RTX 3090", 936, 71},
                                     {"T4", 320, 65}};

absl::StatusOr<nlohmann::json> Describe(Bench* bench) {
  int id = 0;
  SLUICE_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&id), "choosing a device"));
  cudaDeviceProp properties;
  SLUICE_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, id),
                                    "asking what the device is"));
  SLUICE_ASSIGN_OR_RETURN(bench->device, CurrentAttentionDevice());
  if (!kEmulated) {
    for (const DataSheet& sheet : kDataSheets) {
      if (std::strstr(properties.name, sheet.name) == nullptr) continue;
      bench->memory_gb_s = sheet.memory_gb_s;
      bench->bf16_tflop_s = sheet.bf16_tflop_s;
      break;
    }
  }
  nlohmann::json out = {{"name", properties.name},
                        {"emulation", kEmulated},
                        {"capability", bench->device.capability},
                        {"processors", bench->device.processors},
                        {"memory_bytes", properties.totalGlobalMem}};
  if (bench->memory_gb_s > 0) {
    out["spec_memory_gb_s"] = bench->memory_gb_s;
    out["spec_bf16_tflop_s"] = bench->bf16_tflop_s;
  }
  return out;
}

int Main(int argc, char** argv) {
  Bench bench;
  std::set<std::string> wanted;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--tiny") == 0) {
      bench.tiny = true;
    } else {
      wanted.insert(argv[i]);
    }
  }
  struct Part {
    const char* name;
    absl::StatusOr<nlohmann::json> (*measure)(const Bench&);
  };
  constexpr Part kParts[] = {
      {"copy", CopyRates},        {"decode", DecodeRates},
      {"prefill", PrefillRates},  {"quantized", QuantizedRates},
      {"products", ProductRates}, {"sampling", SamplingRates}};
  for (const std::string& name : wanted) {
    bool known = false;
    for (const Part& part : kParts) known |= name == part.name;
    if (!known) {
      std::fprintf(stderr, "cuda_bench: there is no part \"%s\"\n",
                   name.c_str());
      return 2;
    }
  }
  const auto device = Describe(&bench);
  if (!device.ok()) {
    std::fprintf(stderr, "cuda_bench: %s\n",
                 std::string(device.status().message()).c_str());
    return 3;
  }
  nlohmann::json out = {{"device", *device}};
  int status = 0;
  for (const Part& part : kParts) {
    if (!wanted.empty() && wanted.count(part.name) == 0) continue;
    const auto rows = part.measure(bench);
    if (rows.ok()) {
      out[part.name] = *rows;
    } else {
      out[part.name] = {{"error", std::string(rows.status().message())}};
      status = 1;
    }
    std::fprintf(
        stderr, "%s: %s\n", part.name,
        rows.ok() ? "done" : std::string(rows.status().message()).c_str());
  }
  if (out.contains("copy") && out.contains("decode") &&
      out["copy"].is_array() && out["decode"].is_array()) {
    const double copy = out["copy"][0]["gb_s"];
    for (nlohmann::json& row : out["decode"]) {
      row["share_of_copy"] = row["gb_s"].get<double>() / copy;
    }
  }
  std::printf("%s\n", out.dump(1).c_str());
  return status;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Main(argc, argv); }
