#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/types.h"

// What was measured on one worker's machine, or written by hand for a machine
// that is yet to be had: what the planner knows of it. Units: bytes, seconds,
// floating-point operations (a multiply-add counts as two).

namespace sluice {

// A rate that depends on the size of what is done: straight lines between the
// points over the logarithm of x, level beyond the first and the last.
class RateCurve {
 public:
  struct Point {
    double x = 0;     // ascending, above 0
    double rate = 0;  // per second, above 0
    friend bool operator==(const Point&, const Point&) = default;
  };

  RateCurve() = default;
  explicit RateCurve(std::vector<Point> points) : points_(std::move(points)) {}
  static RateCurve Constant(double rate) { return RateCurve({{1, rate}}); }

  bool empty() const { return points_.empty(); }
  const std::vector<Point>& points() const { return points_; }
  // REQUIRES: !empty().
  double At(double x) const;
  // The largest of its points' rates; 0 if empty.
  double Best() const;
  // The same curve, `factor` times as fast.
  RateCurve Scaled(double factor) const;

  // kInvalidArgument names `what` and the point that is not finite, not
  // positive or not ascending.
  absl::Status Check(absl::string_view what) const;

  friend bool operator==(const RateCurve&, const RateCurve&) = default;

 private:
  std::vector<Point> points_;
};

// Matrix products x W of one number format.
struct ProductRate {
  DType dtype = DType::kBFloat16;
  WeightFormat weights = WeightFormat::kFull;
  RateCurve flops_by_rows;  // of x, with all threads; weights in memory
  friend bool operator==(const ProductRate&, const ProductRate&) = default;
};

// Attention over K and V in one format, with what comes before it: positions
// are applied, and new K and V are put into this format.
struct AttentionRate {
  KvFormat format = KvFormat::kBFloat16;
  // Of one decoding row per sequence: bytes of K and V, scales included, by
  // positions attended.
  RateCurve decode_bytes_by_context;
  // Of packed prompts: flops (4 x query width x pairs of positions) by the
  // positions that a row attends on average.
  RateCurve prefill_flops_by_context;
  friend bool operator==(const AttentionRate&, const AttentionRate&) = default;
};

// What computes: a device or the host's cores.
struct ComputeProfile {
  double memory_bytes_per_second = 0;  // plain reads of what it computes on
  std::vector<ProductRate> products;
  std::vector<AttentionRate> attention;
  // Making K and V into codes: bytes of float32.
  double quantize_bytes_per_second = 0;
  // Making codes of weights into full ones: bytes of these.
  double dequantize_bytes_per_second = 0;
  // What a layer of a micro-batch costs beyond its products and attention: so
  // much each time, and so much for each row and element of the hidden state
  // (norms, activations, residuals, moves).
  double layer_seconds = 0;
  double row_element_seconds = 0;
  // Sampling the likeliest token: seconds for each element of its logits, which
  // lie where this computes.
  double logit_seconds = 0;
  // How much of all threads' rate so many give: x threads, share of the rate.
  RateCurve share_by_threads;

  const ProductRate* Products(DType dtype, WeightFormat weights) const;
  const AttentionRate* Attention(KvFormat format) const;
  bool empty() const { return products.empty(); }
  // Makes all of it so many times as fast.
  void Scale(double speed);
  friend bool operator==(const ComputeProfile&,
                         const ComputeProfile&) = default;
};

struct DiskRate {
  uint64_t request_bytes = 0;
  int32_t depth = 0;
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
  friend bool operator==(const DiskRate&, const DiskRate&) = default;
};

struct DiskProfile {
  // As the runtime reads and writes: large requests, many in flight. Reads, as
  // they are while all threads compute, which is when it matters.
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
  // What computing loses to a byte that is read meanwhile: seconds of all
  // threads, for the requests and for the bandwidth of memory.
  double compute_seconds_per_byte = 0;
  // Over request sizes and depths, for people and for small requests.
  std::vector<DiskRate> rates;
  bool direct = true;  // O_DIRECT works in the worker's directory
  friend bool operator==(const DiskProfile&, const DiskProfile&) = default;
};

struct LinkProfile {
  std::string peer;  // the name of the worker at the other end; "": any
  double bytes_per_second = 0;
  double latency_seconds = 0;
  friend bool operator==(const LinkProfile&, const LinkProfile&) = default;
};

struct MachineProfile {
  static constexpr int kVersion = 1;

  std::string name;         // of the worker
  std::string machine;      // workers of one machine share its cores and disk
  std::string fingerprint;  // of what it was measured on; "": by hand
  std::string device;       // "<processor>", or "cuda:0: <GPU>, sm_90"
  std::vector<std::string> remarks;  // what is odd, for people

  // What can really be used.
  uint64_t device_memory_bytes = 0;  // 0: the device is the CPU
  uint64_t host_memory_bytes = 0;
  uint64_t disk_bytes = 0;  // 0: no disk tier
  int32_t threads = 1;

  ComputeProfile host;
  // Of a device with memory of its own; else empty, and the host is the device.
  ComputeProfile device_compute;
  double host_to_device_bytes_per_second = 0;
  double device_to_host_bytes_per_second = 0;
  DiskProfile disk;
  std::vector<LinkProfile> links;
  // What a step costs at the coordinator and between the stages, in all.
  double step_seconds = 0;

  bool has_device() const { return device_memory_bytes > 0; }
  // A GPU, by what --device calls it; else a device is the CPU's, for tests.
  bool has_gpu() const { return has_device() && device.starts_with("cuda"); }
  // What runs the layers.
  const ComputeProfile& compute() const {
    return has_device() ? device_compute : host;
  }
  // To `peer`, or the one for any; nullptr if neither is there.
  const LinkProfile* Link(absl::string_view peer) const;

  // kInvalidArgument names the field that is missing, zero, negative, not
  // finite or absurd (a rate of more than 1e18 a second, more than 1 PiB of
  // memory), and says what it must be. Afterwards the compute profile that runs
  // the layers has all rates, as has the host's beside a device but for
  // products; the disk's are there if disk_bytes is not 0; seconds may be 0.
  absl::Status Check() const;
  friend bool operator==(const MachineProfile&,
                         const MachineProfile&) = default;
};

}  // namespace sluice
