#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/types.h"

// The measurements of one worker's machine, or values written by hand for a
// machine that does not exist yet, from which the planner works. Units: bytes,
// seconds, floating-point operations (a multiply-add counts as two).

namespace sluice {

// A rate that depends on the size x of the work: linear between the points over
// the logarithm of x, constant beyond the first and the last.
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
  // The largest rate of its points; 0 if empty.
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

// The rate of GEMMs x W with one format of weights.
struct ProductRate {
  DType dtype = DType::kBFloat16;
  WeightFormat weights = WeightFormat::kFull;
  RateCurve flops_by_rows;  // of x, with all threads; weights in memory
  friend bool operator==(const ProductRate&, const ProductRate&) = default;
};

// The rates of weights in a checkpoint's codes (CodeFormat), which are decoded
// while they are multiplied, or before.
struct CodeRate {
  std::string format;  // the name of a CodeFormat
  DType dtype = DType::kBFloat16;
  RateCurve flops_by_rows;  // as ProductRate's
  // In bytes of the full format that are made.
  double decode_bytes_per_second = 0;
  friend bool operator==(const CodeRate&, const CodeRate&) = default;
};

// Attention over K and V in one format, including rotary embedding and the
// conversion of new K and V to this format.
struct AttentionRate {
  KvFormat format = KvFormat::kBFloat16;
  // Bytes of K and V read, scales included, by the attended positions; one
  // decoding row per sequence.
  RateCurve decode_bytes_by_context;
  // Flops for packed prompts (4 x query width x pairs of positions), by the
  // positions that a row attends on average.
  RateCurve prefill_flops_by_context;
  friend bool operator==(const AttentionRate&, const AttentionRate&) = default;
};

// The compute rates of a device, or of the host's cores.
struct ComputeProfile {
  double memory_bytes_per_second = 0;  // plain reads of its memory
  std::vector<ProductRate> products;
  std::vector<CodeRate> codes;  // may be empty
  std::vector<AttentionRate> attention;
  // Quantizing K and V, in bytes of float32.
  double quantize_bytes_per_second = 0;
  // Dequantizing weights, in bytes of the full format.
  double dequantize_bytes_per_second = 0;
  // The cost of a layer of a micro-batch beyond GEMMs and attention: seconds
  // for each layer, and seconds for each row and element of the hidden state
  // (norms, activations, residuals, copies).
  double layer_seconds = 0;
  double row_element_seconds = 0;
  // Seconds for each logit to sample the likeliest token, where the logits lie
  // in this processor's memory.
  double logit_seconds = 0;
  // The share of all threads' rate that x threads reach.
  static constexpr double kMaxThreadShare = 2;  // the maximum share
  RateCurve share_by_threads;

  const ProductRate* Products(DType dtype, WeightFormat weights) const;
  const AttentionRate* Attention(KvFormat format) const;
  bool empty() const { return products.empty(); }
  // Makes all rates `speed` times as fast.
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
  // The rates of the runtime's own requests: large, and many in flight. Reads
  // are measured while all threads compute, as when the runtime reads.
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
  // Seconds of all threads that computing loses per byte read meanwhile, to the
  // requests and to the bandwidth of memory.
  double compute_seconds_per_byte = 0;
  // Rates by request size and depth, for people and for small requests.
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

// The exchange of columns between ranks that compute a stage together.
struct ExchangeProfile {
  // Of what a rank gets from the others, while all of them exchange.
  double bytes_per_second = 0;
  double latency_seconds = 0;  // of each exchange, however few its bytes
  friend bool operator==(const ExchangeProfile&,
                         const ExchangeProfile&) = default;
};

// A number of ranks by which a worker may compute its stages, tensor parallel.
struct RankChoice {
  int32_t ranks = 2;
  // A rank's rates while all of them compute, in those of one rank alone: of
  // what waits for memory, as products of few rows, and of what computes.
  double memory_share = 1;
  double product_share = 1;
  ExchangeProfile exchange;
  friend bool operator==(const RankChoice&, const RankChoice&) = default;
};

struct MachineProfile {
  static constexpr int kVersion = 1;

  std::string name;  // of the worker
  // Workers of one machine share its cores and disk; but see SeparateMachines.
  std::string machine;
  std::string fingerprint;           // of the measured machine; "": by hand
  std::string device;                // "<processor>", or "cuda:0: <GPU>, sm_90"
  std::vector<std::string> remarks;  // oddities, for people
  // So much else ran while it was measured that it may well be wrong.
  bool disturbed = false;

  // The capacities that can really be used.
  uint64_t device_memory_bytes = 0;  // 0: the device is the CPU
  uint64_t host_memory_bytes = 0;
  uint64_t disk_bytes = 0;  // 0: no disk tier
  int32_t threads = 1;
  int32_t cores = 0;  // of the machine, for all its workers; 0: not known

  // The ranks that compute each stage together, tensor parallel. If there are
  // several, rates of computing and to and from the device are those of one
  // while all work, and so is the device's memory; host memory, disk and
  // threads are those of all.
  int32_t ranks = 1;
  // Between the ranks; or, of one part of a machine, between this and the
  // others. No rate: none.
  ExchangeProfile exchange;
  // Numbers of ranks, ascending, that the worker may have beside one: a plan
  // says how many compute its stage (Policy::ranks). The other figures are then
  // of one rank.
  std::vector<RankChoice> rank_choices;
  // Parts of one whole, which has this name, may compute stages together if
  // they have an exchange; "": it is no part.
  std::string part_of;

  ComputeProfile host;
  // The rates of a device with its own memory; else empty: the host computes.
  ComputeProfile device_compute;
  double host_to_device_bytes_per_second = 0;
  double device_to_host_bytes_per_second = 0;
  DiskProfile disk;
  std::vector<LinkProfile> links;
  // Whether links may go by NCCL, whose buffers lie in device memory. Not
  // measured: the worker says so.
  bool nccl_links = false;
  // Seconds that a step costs at the coordinator and between stages in total.
  double step_seconds = 0;

  // The most threads that a rank has.
  int32_t rank_threads() const { return (threads + ranks - 1) / ranks; }
  bool has_exchange() const { return exchange.bytes_per_second > 0; }
  bool has_device() const { return device_memory_bytes > 0; }
  // The same machine with so many ranks, and no choice; `count` as in a
  // policy: 0 is the most that there may be. kInvalidArgument if it may not
  // have so many.
  absl::StatusOr<MachineProfile> WithRanks(int32_t count) const;
  // Whether the device is a GPU, by its name; else it is the CPU's, for tests.
  bool has_gpu() const { return has_device() && device.starts_with("cuda"); }
  // The rates of the processor that runs the layers.
  const ComputeProfile& compute() const {
    return has_device() ? device_compute : host;
  }
  // The link to `peer`, or the one for any peer; nullptr if there is neither.
  const LinkProfile* Link(absl::string_view peer) const;

  // kInvalidArgument names the field that is missing, zero, negative, not
  // finite or absurd (a rate of more than 1e18 a second, more than 1 PiB of
  // memory), and says what it must be. If it is OK, compute() has all rates,
  // the host beside a device has all but GEMMs', and the disk has its rates if
  // disk_bytes is not 0; seconds may be 0.
  absl::Status Check() const;
  friend bool operator==(const MachineProfile&,
                         const MachineProfile&) = default;
};

// Gives those workers machines of their own that share one, but compute side by
// side on it: their threads together are no more than its cores. `workers` are
// all that compute at the same time.
void SeparateMachines(std::vector<MachineProfile>* workers);

}  // namespace sluice
