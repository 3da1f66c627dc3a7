#include "tests/bench/paper/fitted.h"

#include "absl/strings/match.h"

// The constants that fit_paper found, and from what.

namespace sluice {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

}  // namespace

FittedConstants PriorFor(absl::string_view hardware) {
  // FlexGen's cost-model script: products of 21.24 Tflop/s in prefill;
  // attention on the host of 0.0123 Tflop/s, a byte of K and V in float16 for
  // each flop; KV from the device at 0.97 GiB/s; the disk at 2.7 GiB/s where
  // it reads large tensors. Calls of attention on the host cost nothing beside.
  const FittedConstants t4 = {.product_flops = 21.24e12,
                              .host_attention_bytes = 12.3e9,
                              .host_call_seconds = 0,
                              .dequantize_bytes = 20e9,
                              .kv_in_bytes = 5e9,
                              .kv_out_bytes = 0.97 * kGiB,
                              .disk_read_bytes = 2.7 * kGiB,
                              .paging_bytes = 2e9};
  if (hardware == "t4") return t4;
  // Half of the data sheet's 312 Tflop/s; the bus has twice T4's rate, and what
  // is copied by the host with it.
  FittedConstants a100 = t4;
  a100.product_flops = 156e12;
  a100.host_call_seconds = 10e-3;
  a100.kv_in_bytes *= 2;
  a100.kv_out_bytes *= 2;
  return a100;
}

std::vector<std::string> FreeConstants(absl::string_view hardware) {
  if (hardware == "t4") {
    return {"product_flops", "host_attention_bytes", "dequantize_bytes",
            "kv_in_bytes", "disk_read_bytes"};
  }
  return {"host_attention_bytes", "host_call_seconds", "paging_bytes"};
}

FittedConstants FittedFor(absl::string_view hardware) {
  FittedConstants constants = PriorFor(hardware);
  if (hardware == "t4") {
    constants.product_flops = 2.034e13;
    constants.host_attention_bytes = 1.267e10;
    constants.dequantize_bytes = 2.112e10;
    constants.kv_in_bytes = 3.453e9;
    constants.disk_read_bytes = 2.687e9;
  } else {
    constants.host_attention_bytes = 1.191e10;
    constants.host_call_seconds = 1.073e-2;
    constants.paging_bytes = 5.728e9;
  }
  return constants;
}

// T4: all prompts of 256 tokens but none of 512, so that lengths, block shapes
// and most policies are predicted. A100: one run of each model, among them the
// longest of all, to tell what attention costs by positions from what it costs
// by calls.
bool WasFitted(const PublishedRun& run) {
  if (run.hardware == "t4") return run.prompt == 256;
  if (run.model == "opt-30b") return run.output == 128;
  return run.output == (run.model == "opt-66b" ? 32 : 8);
}

}  // namespace sluice
