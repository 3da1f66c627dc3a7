#include "common/machine_profile.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/policy.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

// Values above these limits are typing mistakes, not machines.
constexpr double kMaxRate = 1e18;                    // per second
constexpr double kMaxSeconds = 3600;                 // of one step, row, token
constexpr uint64_t kMaxMemory = uint64_t{1} << 50;   // 1 PiB
constexpr uint64_t kMaxDisk = uint64_t{1} << 60;     // 1 EiB
constexpr uint64_t kMaxRequest = uint64_t{1} << 40;  // 1 TiB
constexpr int32_t kMaxThreads = 1 << 16;
constexpr int32_t kMaxDepth = 1 << 16;

absl::Status Bad(absl::string_view field, double value,
                 absl::string_view must) {
  return InvalidArgument(field, ": ", value, " must be ", must);
}

absl::Status CheckRate(absl::string_view field, double rate) {
  if (rate == 0) {
    return InvalidArgument(field, ": missing or 0; it must be above 0");
  }
  if (!(rate > 0) || !std::isfinite(rate)) {
    return Bad(field, rate, "a finite number above 0");
  }
  if (rate > kMaxRate) return Bad(field, rate, "at most 1e18 a second");
  return absl::OkStatus();
}

absl::Status CheckSeconds(absl::string_view field, double seconds) {
  if (!(seconds >= 0) || !std::isfinite(seconds)) {
    return Bad(field, seconds, "a finite number of seconds, 0 or more");
  }
  if (seconds > kMaxSeconds) return Bad(field, seconds, "at most 3600");
  return absl::OkStatus();
}

absl::Status CheckBytes(absl::string_view field, uint64_t bytes, uint64_t max) {
  if (bytes <= max) return absl::OkStatus();
  return InvalidArgument(field, ": ", bytes, " must be at most ", max,
                         " bytes");
}

absl::Status CheckCount(absl::string_view field, int64_t count, int64_t max) {
  if (count >= 1 && count <= max) return absl::OkStatus();
  return InvalidArgument(field, ": ", count,
                         " must be a whole number within 1..", max);
}

absl::Status CheckGemms(absl::string_view field,
                        const std::vector<ProductRate>& products) {
  for (size_t i = 0; i < products.size(); ++i) {
    const std::string name = absl::StrCat(field, "[", i, "]");
    for (size_t j = 0; j < i; ++j) {
      if (products[i].dtype != products[j].dtype ||
          products[i].weights != products[j].weights) {
        continue;
      }
      return InvalidArgument(name, ": the same dtype and weights as ", field,
                             "[", j, "]");
    }
    SLUICE_RETURN_IF_ERROR(
        products[i].flops_by_rows.Check(absl::StrCat(name, ".flops_by_rows")));
  }
  return absl::OkStatus();
}

absl::Status CheckCodes(absl::string_view field,
                        const std::vector<CodeRate>& codes) {
  for (size_t i = 0; i < codes.size(); ++i) {
    const std::string name = absl::StrCat(field, "[", i, "]");
    for (size_t j = 0; j < i; ++j) {
      if (codes[i].dtype != codes[j].dtype ||
          codes[i].format != codes[j].format) {
        continue;
      }
      return InvalidArgument(name, ": the same dtype and format as ", field,
                             "[", j, "]");
    }
    SLUICE_RETURN_IF_ERROR(
        codes[i].flops_by_rows.Check(absl::StrCat(name, ".flops_by_rows")));
    SLUICE_RETURN_IF_ERROR(
        CheckRate(absl::StrCat(name, ".decode_bytes_per_second"),
                  codes[i].decode_bytes_per_second));
  }
  return absl::OkStatus();
}

absl::Status CheckAttention(absl::string_view field,
                            const std::vector<AttentionRate>& attention) {
  if (attention.empty()) {
    return InvalidArgument(field, ": missing; it needs a format at least");
  }
  for (size_t i = 0; i < attention.size(); ++i) {
    const std::string name = absl::StrCat(field, "[", i, "]");
    for (size_t j = 0; j < i; ++j) {
      if (attention[i].format != attention[j].format) continue;
      return InvalidArgument(name, ": the same format as ", field, "[", j, "]");
    }
    SLUICE_RETURN_IF_ERROR(attention[i].decode_bytes_by_context.Check(
        absl::StrCat(name, ".decode_bytes_by_context")));
    SLUICE_RETURN_IF_ERROR(attention[i].prefill_flops_by_context.Check(
        absl::StrCat(name, ".prefill_flops_by_context")));
  }
  return absl::OkStatus();
}

// With `layers`, the profile is of what runs layers, not only attention.
absl::Status CheckCompute(absl::string_view field, const ComputeProfile& c,
                          bool layers) {
  const auto name = [&](absl::string_view member) {
    return absl::StrCat(field, ".", member);
  };
  SLUICE_RETURN_IF_ERROR(
      CheckRate(name("memory_bytes_per_second"), c.memory_bytes_per_second));
  if (layers && c.products.empty()) {
    return InvalidArgument(name("products"),
                           ": missing; it needs a number format at least");
  }
  SLUICE_RETURN_IF_ERROR(CheckGemms(name("products"), c.products));
  SLUICE_RETURN_IF_ERROR(CheckCodes(name("codes"), c.codes));
  SLUICE_RETURN_IF_ERROR(CheckAttention(name("attention"), c.attention));
  SLUICE_RETURN_IF_ERROR(CheckRate(name("quantize_bytes_per_second"),
                                   c.quantize_bytes_per_second));
  SLUICE_RETURN_IF_ERROR(CheckRate(name("dequantize_bytes_per_second"),
                                   c.dequantize_bytes_per_second));
  SLUICE_RETURN_IF_ERROR(CheckSeconds(name("layer_seconds"), c.layer_seconds));
  SLUICE_RETURN_IF_ERROR(
      CheckSeconds(name("row_element_seconds"), c.row_element_seconds));
  SLUICE_RETURN_IF_ERROR(CheckSeconds(name("logit_seconds"), c.logit_seconds));
  const std::string share = name("share_by_threads");
  SLUICE_RETURN_IF_ERROR(c.share_by_threads.Check(share));
  for (const RateCurve::Point& point : c.share_by_threads.points()) {
    if (point.rate > ComputeProfile::kMaxThreadShare) {
      return Bad(share, point.rate, "a share of all threads' rate, about 1");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDisk(const DiskProfile& disk, bool needed) {
  if (needed || disk.read_bytes_per_second != 0) {
    SLUICE_RETURN_IF_ERROR(
        CheckRate("disk.read_bytes_per_second", disk.read_bytes_per_second));
  }
  if (needed || disk.write_bytes_per_second != 0) {
    SLUICE_RETURN_IF_ERROR(
        CheckRate("disk.write_bytes_per_second", disk.write_bytes_per_second));
  }
  SLUICE_RETURN_IF_ERROR(CheckSeconds("disk.compute_seconds_per_byte",
                                      disk.compute_seconds_per_byte));
  for (size_t i = 0; i < disk.rates.size(); ++i) {
    const DiskRate& rate = disk.rates[i];
    const std::string name = absl::StrCat("disk.rates[", i, "].");
    if (rate.request_bytes == 0 || rate.request_bytes > kMaxRequest) {
      return InvalidArgument(name, "request_bytes: ", rate.request_bytes,
                             " must be within 1..", kMaxRequest);
    }
    SLUICE_RETURN_IF_ERROR(
        CheckCount(absl::StrCat(name, "depth"), rate.depth, kMaxDepth));
    SLUICE_RETURN_IF_ERROR(
        CheckRate(absl::StrCat(name, "read_bytes_per_second"),
                  rate.read_bytes_per_second));
    SLUICE_RETURN_IF_ERROR(
        CheckRate(absl::StrCat(name, "write_bytes_per_second"),
                  rate.write_bytes_per_second));
  }
  return absl::OkStatus();
}

absl::Status CheckExchange(const std::string& name,
                           const ExchangeProfile& exchange, bool needed) {
  if (needed || exchange.bytes_per_second != 0) {
    SLUICE_RETURN_IF_ERROR(CheckRate(absl::StrCat(name, ".bytes_per_second"),
                                     exchange.bytes_per_second));
  }
  return CheckSeconds(absl::StrCat(name, ".latency_seconds"),
                      exchange.latency_seconds);
}

absl::Status CheckRankChoices(const std::vector<RankChoice>& choices) {
  int32_t before = 1;
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::string name = absl::StrCat("rank_choices[", i, "].");
    const RankChoice& choice = choices[i];
    SLUICE_RETURN_IF_ERROR(
        CheckCount(absl::StrCat(name, "ranks"), choice.ranks, kMaxRanks));
    if (choice.ranks <= before) {
      return Bad(absl::StrCat(name, "ranks"), choice.ranks,
                 absl::StrCat("above ", before));
    }
    before = choice.ranks;
    SLUICE_RETURN_IF_ERROR(
        CheckRate(absl::StrCat(name, "memory_share"), choice.memory_share));
    SLUICE_RETURN_IF_ERROR(
        CheckRate(absl::StrCat(name, "product_share"), choice.product_share));
    SLUICE_RETURN_IF_ERROR(
        CheckExchange(absl::StrCat(name, "exchange"), choice.exchange, true));
  }
  return absl::OkStatus();
}

// The rates of a rank: products of few rows wait for their weights, those of
// many compute; between, and for attention over prompts, in proportion to the
// logarithm of the rows.
void ScaleToRank(const RankChoice& choice, ComputeProfile* compute) {
  constexpr double kManyRows = 256;
  const auto share = [&](double rows) {
    const double many = std::clamp(
        std::log(std::max(1.0, rows)) / std::log(kManyRows), 0.0, 1.0);
    return (1 - many) * choice.memory_share + many * choice.product_share;
  };
  compute->memory_bytes_per_second *= choice.memory_share;
  const auto scale = [&](RateCurve& curve) {
    std::vector<RateCurve::Point> points = curve.points();
    for (RateCurve::Point& point : points) point.rate *= share(point.x);
    curve = RateCurve(std::move(points));
  };
  for (ProductRate& product : compute->products) scale(product.flops_by_rows);
  for (CodeRate& rate : compute->codes) {
    scale(rate.flops_by_rows);
    rate.decode_bytes_per_second *= choice.product_share;
  }
  for (AttentionRate& rate : compute->attention) {
    rate.decode_bytes_by_context =
        rate.decode_bytes_by_context.Scaled(choice.memory_share);
    rate.prefill_flops_by_context =
        rate.prefill_flops_by_context.Scaled(choice.product_share);
  }
  compute->quantize_bytes_per_second *= choice.product_share;
  compute->dequantize_bytes_per_second *= choice.memory_share;
  compute->row_element_seconds /= choice.memory_share;
  // The leading rank samples alone.
  compute->logit_seconds /= choice.product_share;
}

}  // namespace

double RateCurve::At(double x) const {
  const auto next = std::upper_bound(
      points_.begin(), points_.end(), x,
      [](double value, const Point& point) { return value < point.x; });
  if (next == points_.begin()) return points_.front().rate;
  if (next == points_.end()) return points_.back().rate;
  const Point& a = *(next - 1);
  const double share = std::log(x / a.x) / std::log(next->x / a.x);
  return a.rate + share * (next->rate - a.rate);
}

double RateCurve::Best() const {
  double best = 0;
  for (const Point& point : points_) best = std::max(best, point.rate);
  return best;
}

RateCurve RateCurve::Scaled(double factor) const {
  RateCurve scaled = *this;
  for (Point& point : scaled.points_) point.rate *= factor;
  return scaled;
}

absl::Status RateCurve::Check(absl::string_view what) const {
  if (points_.empty()) {
    return InvalidArgument(what,
                           ": missing; it needs a point [x, rate] at least");
  }
  double before = 0;
  for (size_t i = 0; i < points_.size(); ++i) {
    const std::string name = absl::StrCat(what, "[", i, "]");
    const Point& point = points_[i];
    if (!std::isfinite(point.x) || !(point.x > 0)) {
      return Bad(absl::StrCat(name, ".x"), point.x, "a finite number above 0");
    }
    if (point.x <= before) {
      return Bad(absl::StrCat(name, ".x"), point.x,
                 absl::StrCat("above that of the point before, ", before));
    }
    before = point.x;
    SLUICE_RETURN_IF_ERROR(CheckRate(absl::StrCat(name, ".rate"), point.rate));
  }
  return absl::OkStatus();
}

void ComputeProfile::Scale(double speed) {
  memory_bytes_per_second *= speed;
  for (ProductRate& product : products) {
    product.flops_by_rows = product.flops_by_rows.Scaled(speed);
  }
  for (CodeRate& rate : codes) {
    rate.flops_by_rows = rate.flops_by_rows.Scaled(speed);
    rate.decode_bytes_per_second *= speed;
  }
  for (AttentionRate& rate : attention) {
    rate.decode_bytes_by_context = rate.decode_bytes_by_context.Scaled(speed);
    rate.prefill_flops_by_context = rate.prefill_flops_by_context.Scaled(speed);
  }
  quantize_bytes_per_second *= speed;
  dequantize_bytes_per_second *= speed;
  layer_seconds /= speed;
  row_element_seconds /= speed;
  logit_seconds /= speed;
}

const ProductRate* ComputeProfile::Products(DType dtype,
                                            WeightFormat weights) const {
  for (const ProductRate& rate : products) {
    if (rate.dtype == dtype && rate.weights == weights) return &rate;
  }
  return nullptr;
}

const AttentionRate* ComputeProfile::Attention(KvFormat format) const {
  for (const AttentionRate& rate : attention) {
    if (rate.format == format) return &rate;
  }
  return nullptr;
}

const LinkProfile* MachineProfile::Link(absl::string_view peer) const {
  const LinkProfile* any = nullptr;
  for (const LinkProfile& link : links) {
    if (link.peer == peer) return &link;
    if (link.peer.empty()) any = &link;
  }
  return any;
}

absl::StatusOr<MachineProfile> MachineProfile::WithRanks(int32_t count) const {
  if (count == 0)
    count = rank_choices.empty() ? ranks : rank_choices.back().ranks;
  MachineProfile with = *this;
  with.rank_choices.clear();
  if (count == ranks) return with;
  for (const RankChoice& choice : rank_choices) {
    if (choice.ranks != count) continue;
    with.ranks = count;
    with.exchange = choice.exchange;
    ScaleToRank(choice, &with.host);
    if (with.has_device()) ScaleToRank(choice, &with.device_compute);
    return with;
  }
  return InvalidArgument("tensor-parallel=", count, ": worker '", name,
                         "' may not have so many ranks");
}

absl::Status MachineProfile::Check() const {
  SLUICE_RETURN_IF_ERROR(
      CheckBytes("device_memory_bytes", device_memory_bytes, kMaxMemory));
  if (host_memory_bytes == 0) {
    return absl::InvalidArgumentError(
        "host_memory_bytes: missing or 0; it must be above 0");
  }
  SLUICE_RETURN_IF_ERROR(
      CheckBytes("host_memory_bytes", host_memory_bytes, kMaxMemory));
  SLUICE_RETURN_IF_ERROR(CheckBytes("disk_bytes", disk_bytes, kMaxDisk));
  SLUICE_RETURN_IF_ERROR(CheckCount("threads", threads, kMaxThreads));
  if (cores != 0) {
    SLUICE_RETURN_IF_ERROR(CheckCount("cores", cores, kMaxThreads));
  }
  SLUICE_RETURN_IF_ERROR(CheckCount("ranks", ranks, kMaxRanks));
  SLUICE_RETURN_IF_ERROR(CheckExchange("exchange", exchange, ranks > 1));
  SLUICE_RETURN_IF_ERROR(CheckRankChoices(rank_choices));
  if (ranks > 1 && !rank_choices.empty()) {
    return absl::InvalidArgumentError(
        "rank_choices: given, but the other figures are of several ranks");
  }
  SLUICE_RETURN_IF_ERROR(CheckCompute("host", host, !has_device()));
  if (has_device()) {
    SLUICE_RETURN_IF_ERROR(
        CheckCompute("device_compute", device_compute, true));
    SLUICE_RETURN_IF_ERROR(CheckRate("host_to_device_bytes_per_second",
                                     host_to_device_bytes_per_second));
    SLUICE_RETURN_IF_ERROR(CheckRate("device_to_host_bytes_per_second",
                                     device_to_host_bytes_per_second));
  } else if (!(device_compute == ComputeProfile())) {
    return absl::InvalidArgumentError(
        "device_compute: given, but device_memory_bytes is 0: what computes "
        "without memory of its own is `host`");
  }
  SLUICE_RETURN_IF_ERROR(CheckDisk(disk, disk_bytes > 0));
  for (size_t i = 0; i < links.size(); ++i) {
    const std::string name = absl::StrCat("links[", i, "].");
    SLUICE_RETURN_IF_ERROR(CheckRate(absl::StrCat(name, "bytes_per_second"),
                                     links[i].bytes_per_second));
    SLUICE_RETURN_IF_ERROR(CheckSeconds(absl::StrCat(name, "latency_seconds"),
                                        links[i].latency_seconds));
  }
  return CheckSeconds("step_seconds", step_seconds);
}

void SeparateMachines(std::vector<MachineProfile>* workers) {
  struct Use {
    int64_t workers = 0, threads = 0;
    int32_t cores = INT32_MAX;
  };
  std::map<std::string, Use> machines;
  for (const MachineProfile& worker : *workers) {
    Use& use = machines[worker.machine];
    ++use.workers;
    use.threads += worker.threads;
    use.cores = std::min(use.cores, worker.cores);
  }
  for (size_t w = 0; w < workers->size(); ++w) {
    std::string& machine = (*workers)[w].machine;
    const Use& use = machines.at(machine);
    if (!machine.empty() && use.workers > 1 && use.threads <= use.cores) {
      absl::StrAppend(&machine, ", worker ", w);
    }
  }
}

}  // namespace sluice
