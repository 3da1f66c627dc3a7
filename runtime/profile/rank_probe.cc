#include "runtime/profile/rank_probe.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>

#include "common/status_macros.h"
#include "common/threads/clock.h"
#include "common/threads/thread.h"
#include "runtime/memory/compute_pool.h"
#include "runtime/memory/cpu_topology.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/profile/gemm_probe.h"
#include "runtime/profile/measure.h"

namespace sluice {
namespace {

// Products of few rows wait for memory, those of many compute.
constexpr int32_t kRows[] = {1, 256};
// Shares of the time: products of one rank alone, of all; the exchange.
constexpr double kAloneShare = 0.25;
constexpr double kTogetherShare = 0.35;
// Of the exchange's, that of small ones.
constexpr double kSmallShare = 0.4;
// Rows of the exchanges: of a decode step's attention, and of a prefill step.
constexpr size_t kRowBytes = 16384;
constexpr int32_t kSmallRows = 1;
constexpr int32_t kLargeRows = 512;
constexpr int kBatches = 9;
constexpr int kWarmUps = 3;
constexpr int64_t kMaxCalls = 10000;  // in a batch

// The cores of each rank; empty ones if the ranks are not pinned.
std::vector<std::vector<int>> CoresOf(const RankProbeOptions& options) {
  return DivideCores(options.cores, NumaNodesOf(options.cores), options.ranks);
}

int ThreadsOf(const RankProbeOptions& options, const std::vector<int>& cores) {
  return cores.empty() ? std::max(1, options.threads / options.ranks)
                       : static_cast<int>(cores.size());
}

// Calls `body` with each rank, on a thread of its own, bound to its first core.
absl::Status OnRanks(
    const RankProbeOptions& options,
    const std::function<absl::Status(int rank, const std::vector<int>& cores)>&
        body) {
  const std::vector<std::vector<int>> cores = CoresOf(options);
  std::vector<absl::Status> statuses(static_cast<size_t>(options.ranks));
  std::vector<Thread> threads;
  for (int rank = 0; rank < options.ranks; ++rank) {
    threads.emplace_back("rank", [&, rank] {
      if (!cores[rank].empty()) BindThisThread({cores[rank].data(), 1});
      statuses[rank] = body(rank, cores[rank]);
    });
  }
  for (Thread& thread : threads) thread.Join();
  for (const absl::Status& status : statuses) SLUICE_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> Products(
    const RankProbeOptions& options, int threads, const std::vector<int>& cores,
    double seconds, const std::atomic<bool>* cancelled) {
  // As much memory for one alone as for each of several: the same matrices.
  MemoryBudget budget(options.budget, options.budget->limit_bytes() /
                                          static_cast<uint64_t>(options.ranks));
  ComputePool pool(threads, cores);
  SLUICE_ASSIGN_OR_RETURN(
      const std::unique_ptr<GemmProbe> probe,
      GemmProbe::Create(options.dtype, WeightFormat::kFull, &pool, &budget));
  return probe->Flops(kRows, seconds, cancelled);
}

// Rows that a rank exchanges, its own columns in their place.
struct Rows {
  HostBuffer data;
  std::vector<size_t> bounds;

  ColumnGather Gather(int rank, int32_t rows) const {
    ColumnGather gather;
    gather.to = static_cast<std::byte*>(data.data());
    gather.from = gather.to + bounds[static_cast<size_t>(rank)];
    gather.from_stride = gather.to_stride = kRowBytes;
    gather.rows = rows;
    gather.bounds = bounds;
    return gather;
  }
};

absl::StatusOr<Rows> MakeRows(int32_t ranks, MemoryBudget* budget) {
  Rows rows;
  SLUICE_ASSIGN_OR_RETURN(
      rows.data,
      HostBuffer::Create("exchange", kRowBytes * kLargeRows, budget));
  FillFloats(static_cast<float*>(rows.data.data()),
             kRowBytes * kLargeRows / sizeof(float));
  for (int32_t rank = 0; rank <= ranks; ++rank) {
    rows.bounds.push_back(kRowBytes / sizeof(float) *
                          static_cast<size_t>(rank) /
                          static_cast<size_t>(ranks) * sizeof(float));
  }
  return rows;
}

// Times exchanges of so many rows, in lockstep: the first rank says how many,
// and the others see it after the next exchange. Returns its typical seconds.
class Lockstep {
 public:
  Lockstep(CollectiveGroup* group, double seconds)
      : group_(*group), seconds_(seconds) {}

  absl::StatusOr<double> Time(int rank, const Rows& mine, int32_t rows,
                              ComputePool& pool) {
    Collective& end = group_.rank(rank);
    const ColumnGather gather = mine.Gather(rank, rows);
    for (int i = 0; i < kWarmUps; ++i) {
      SLUICE_RETURN_IF_ERROR(end.Gather(gather, pool));
    }
    const double before = MonotonicSeconds();
    SLUICE_RETURN_IF_ERROR(end.Gather(gather, pool));
    if (rank == 0) {
      const double one = std::max(1e-9, MonotonicSeconds() - before);
      calls_ = std::clamp<int64_t>(std::llround(seconds_ / kBatches / one), 1,
                                   kMaxCalls);
    }
    SLUICE_RETURN_IF_ERROR(end.Gather(gather, pool));
    std::vector<double> times;
    const int64_t calls = calls_;
    ComputeStopwatch watch;
    for (int batch = 0; batch < kBatches; ++batch) {
      watch.Lap();
      for (int64_t call = 0; call < calls; ++call) {
        SLUICE_RETURN_IF_ERROR(end.Gather(gather, pool));
      }
      times.push_back(watch.Lap() / static_cast<double>(calls));
    }
    return TypicalSeconds(std::move(times));
  }

 private:
  CollectiveGroup& group_;
  const double seconds_;
  std::atomic<int64_t> calls_{1};
};

}  // namespace

absl::StatusOr<ExchangeProfile> MeasureExchange(
    const RankProbeOptions& options, CollectiveGroup* group, double seconds,
    const std::atomic<bool>* cancelled) {
  SLUICE_RETURN_IF_ERROR(CheckNotCancelled(cancelled));
  std::vector<Rows> rows;
  for (int32_t rank = 0; rank < options.ranks; ++rank) {
    SLUICE_ASSIGN_OR_RETURN(rows.emplace_back(),
                            MakeRows(options.ranks, options.budget));
  }
  Lockstep small(group, kSmallShare * seconds);
  Lockstep large(group, (1 - kSmallShare) * seconds);
  double small_seconds = 0, large_seconds = 0;  // the first rank's
  SLUICE_RETURN_IF_ERROR(
      OnRanks(options, [&](int rank, const std::vector<int>& cores) {
        ComputePool pool(ThreadsOf(options, cores), cores);
        const auto one = small.Time(rank, rows[rank], kSmallRows, pool);
        if (!one.ok()) {
          group->Abort(one.status());
          return one.status();
        }
        const auto many = large.Time(rank, rows[rank], kLargeRows, pool);
        if (!many.ok()) {
          group->Abort(many.status());
          return many.status();
        }
        if (rank == 0) {
          small_seconds = *one;
          large_seconds = *many;
        }
        return absl::OkStatus();
      }));
  const double others = kRowBytes * (options.ranks - 1.0) / options.ranks;
  ExchangeProfile exchange;
  exchange.latency_seconds = small_seconds;
  // The small one's bytes hardly count.
  exchange.bytes_per_second =
      others * (kLargeRows - kSmallRows) /
      std::max(large_seconds - small_seconds, 0.01 * large_seconds);
  return exchange;
}

absl::StatusOr<RankChoice> MeasureRanks(const RankProbeOptions& options,
                                        CollectiveGroup* group, double seconds,
                                        const std::atomic<bool>* cancelled) {
  RankChoice choice = {.ranks = options.ranks};
  double left = seconds;
  if (!options.own_processors) {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<double> alone,
                            Products(options, options.threads, options.cores,
                                     kAloneShare * seconds, cancelled));
    // The slowest rank's, for which the others wait.
    std::vector<std::vector<double>> each(static_cast<size_t>(options.ranks));
    SLUICE_RETURN_IF_ERROR(
        OnRanks(options, [&](int rank, const std::vector<int>& cores) {
          SLUICE_ASSIGN_OR_RETURN(
              each[rank], Products(options, ThreadsOf(options, cores), cores,
                                   kTogetherShare * seconds, cancelled));
          return absl::OkStatus();
        }));
    double shares[std::size(kRows)];
    for (size_t i = 0; i < std::size(kRows); ++i) {
      shares[i] = each[0][i] / alone[i];
      for (const std::vector<double>& of_rank : each) {
        shares[i] = std::min(shares[i], of_rank[i] / alone[i]);
      }
      // Other work on the machine must not make a rank faster than all cores.
      shares[i] = std::min(shares[i], 1.0);
    }
    choice.memory_share = shares[0];
    choice.product_share = shares[1];
    left *= 1 - kAloneShare - kTogetherShare;
  }
  SLUICE_ASSIGN_OR_RETURN(choice.exchange,
                          MeasureExchange(options, group, left, cancelled));
  return choice;
}

}  // namespace sluice
