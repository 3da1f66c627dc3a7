// Decode attention of one layer over KV pages in memory, in each format, beside
// the rate at which the same threads read the same bytes.
//
//   attention_bench [megabytes] [repeats] [sparsity]
//
// One new token for each of as many sequences as take `megabytes` of pages (far
// more than the caches hold), 4 KV heads of 8 query heads each. GB/s counts K
// and V, scales included, once; "tokens/s" is for one layer. Medians, and in
// brackets the slowest and the fastest.

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "runtime/kernels/cpu/attention.h"
#include "runtime/kv/kv_arena.h"
#include "runtime/kv/page_pool.h"
#include "runtime/memory/compute_pool.h"

namespace sluice {
namespace {

constexpr int kKvHeads = 4;
constexpr int kGroupHeads = 8;

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Spread {
  double median, low, high;
};

template <typename Body>
Spread Measure(int repeats, const Body& body) {
  body();
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const double start = Now();
    body();
    seconds.push_back(Now() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front(), seconds.back()};
}

// Sums of 8 bytes at a time, several at once, so that only memory counts.
uint64_t SumOf(const std::byte* p, size_t bytes) {
  uint64_t sums[16] = {};
  for (size_t i = 0; i + 128 <= bytes; i += 128) {
    uint64_t line[16];
    std::memcpy(line, p + i, sizeof(line));
    for (int j = 0; j < 16; ++j) sums[j] += line[j];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

void Run(KvFormat format, int head_dim, int context, int threads,
         size_t megabytes, int repeats, float sparsity) {
  const KvLayout layout{1, kKvHeads, head_dim, format};
  const int pages_each = (context + kPageTokens - 1) / kPageTokens;
  const size_t sequence_bytes = pages_each * layout.page_bytes();
  const int sequences =
      std::max<int>(threads, (megabytes << 20) / sequence_bytes);
  MemoryBudget budget(Tier::kHost, uint64_t{64} << 30);
  auto arena =
      KvArena::Create(layout, int64_t{1} * sequences * pages_each, &budget);
  if (!arena.ok()) {
    std::fprintf(stderr, "%s\n", arena.status().ToString().c_str());
    std::exit(1);
  }
  std::byte* base = (*arena)->LayerBase(0);
  // One page of random K and V, then copies of it.
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> k(kPageTokens * head_dim), v(kPageTokens * head_dim);
  for (int head = 0; head < kKvHeads; ++head) {
    for (float& x : k) x = normal(random);
    for (float& x : v) x = normal(random);
    StoreKv(k.data(), head_dim, v.data(), head_dim, 0, kPageTokens, head_dim,
            format, base + layout.head_offset(head));
  }
  for (int64_t p = 1; p < int64_t{1} * sequences * pages_each; ++p) {
    std::memcpy(base + p * layout.page_bytes(), base, layout.page_bytes());
  }
  // Pages as a pool hands them out: neighbours mostly, sequences interleaved.
  std::vector<std::vector<int32_t>> pages(sequences);
  for (int32_t p = 0; p < sequences * pages_each; ++p) {
    pages[p / 4 % sequences].push_back(p);
  }
  for (auto& table : pages) {
    while (static_cast<int>(table.size()) < pages_each) table.push_back(0);
  }

  ComputePool pool(threads);
  std::vector<AttentionScratch> scratch;
  for (int i = 0; i < threads; ++i) scratch.emplace_back(head_dim, context);
  for (AttentionScratch& s : scratch) {
    for (int r = 0; r < kGroupHeads; ++r) {
      for (int i = 0; i < head_dim; ++i) {
        s.query(r)[i] = normal(random) / head_dim;
      }
    }
  }
  std::vector<float> out(size_t{1} * threads * kGroupHeads * head_dim);
  std::vector<uint64_t> v_bytes(threads * 8);
  const auto attend = [&](float share) {
    pool.ParallelFor(sequences, [&](int task, int thread) {
      AttentionCall call;
      call.format = format;
      call.head_dim = head_dim;
      call.page_stride = layout.layer_page_bytes();
      call.pages = pages[task];
      call.rows = kGroupHeads;
      call.sparsity = share;
      call.v_bytes_read = &v_bytes[thread * 8];
      for (int head = 0; head < kKvHeads; ++head) {
        call.head = base + layout.head_offset(head);
        call.next = head + 1 < kKvHeads
                        ? base + layout.head_offset(head + 1) +
                              pages[task][0] * layout.layer_page_bytes()
                        : nullptr;
        for (int r = 0; r < kGroupHeads; ++r) {
          call.begin[r] = 0;
          call.end[r] = context;
          call.out[r] =
              out.data() + (size_t{1} * thread * kGroupHeads + r) * head_dim;
        }
        Attend(call, scratch[thread]);
      }
    });
  };
  const size_t bytes = sequences * sequence_bytes;
  volatile uint64_t sink = 0;
  const Spread read = Measure(repeats, [&] {
    pool.ParallelFor(sequences, [&](int task, int) {
      sink = sink + SumOf(base + task * sequence_bytes, sequence_bytes);
    });
  });
  const Spread dense = Measure(repeats, [&] { attend(1); });
  std::fill(v_bytes.begin(), v_bytes.end(), 0);
  attend(sparsity);
  uint64_t sparse_v = 0;
  for (const uint64_t x : v_bytes) sparse_v += x;
  const Spread sparse = Measure(repeats, [&] { attend(sparsity); });
  std::printf(
      "%-8s %8d %7d %7d   %5.1f [%5.1f %5.1f]   %5.1f   %3.0f %%   %8.0f   "
      "%8.0f   %3.0f %%\n",
      std::string(KvFormatName(format)).c_str(), head_dim, context, threads,
      1e-9 * bytes / dense.median, 1e-9 * bytes / dense.high,
      1e-9 * bytes / dense.low, 1e-9 * bytes / read.median,
      100 * read.median / dense.median, sequences / dense.median,
      sequences / sparse.median,
      100.0 * sparse_v /
          (1.0 * sequences * kKvHeads * context * layout.v_position_bytes()));
}

int Main(int argc, char** argv) {
  const size_t megabytes = argc > 1 ? std::atoi(argv[1]) : 256;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 7;
  const float sparsity = argc > 3 ? std::atof(argv[3]) : 0.1f;
  std::printf(
      "format   head_dim context threads   GB/s [slow  fast]    read   of it  "
      " tokens/s   sparse/s   V read\n");
  for (const int head_dim : {64, 128}) {
    for (const int context : {512, 4096}) {
      for (const int threads : {1, 2}) {
        for (const KvFormat format :
             {KvFormat::kBFloat16, KvFormat::kInt8, KvFormat::kInt4}) {
          Run(format, head_dim, context, threads, megabytes, repeats, sparsity);
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
