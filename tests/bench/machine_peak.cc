// Measures what this machine can do at most, with nothing in the way, so that a
// recorded figure can be compared with one of another machine: multiply-adds
// that stay in registers, reads of memory, direct reads of a disk. Prints a
// JSON object whose rates are medians with the slowest and the fastest repeat.
//
//   machine_peak [directory on the disk to measure] [repeats]

#include <cpuid.h>
#include <fcntl.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

// A loop in registers: runs `rounds` of it and returns the operations done (a
// multiply-add is two).
using Loop = double (*)(int64_t rounds);

// So many independent sums hide the latency of an instruction on every core
// known to us.
constexpr int kSums = 12;
// Results go here, so that no loop is left out.
std::atomic<float> sink;

__attribute__((target("avx2,fma"))) double F32Avx2(int64_t rounds) {
  __m256 sum[kSums];
  for (__m256& s : sum) s = _mm256_set1_ps(sink);
  const __m256 a = _mm256_set1_ps(1.0f + sink), b = _mm256_set1_ps(0.5f);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sum[i] = _mm256_fmadd_ps(a, sum[i], b);
  }
  float total = 0;
  for (const __m256& s : sum) total += s[0];
  sink = total * 0;
  return 2.0 * 8 * kSums * static_cast<double>(rounds);
}

__attribute__((target("avx512f"))) double F32Avx512(int64_t rounds) {
  __m512 sum[kSums];
  for (__m512& s : sum) s = _mm512_set1_ps(sink);
  const __m512 a = _mm512_set1_ps(1.0f + sink), b = _mm512_set1_ps(0.5f);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sum[i] = _mm512_fmadd_ps(a, sum[i], b);
  }
  float total = 0;
  for (const __m512& s : sum) total += s[0];
  sink = total * 0;
  return 2.0 * 16 * kSums * static_cast<double>(rounds);
}

__attribute__((target("avx512f,avx512bf16"))) double Bf16Avx512(
    int64_t rounds) {
  __m512 sum[kSums];
  for (__m512& s : sum) s = _mm512_set1_ps(sink);
  const __m512bh a = _mm512_cvtne2ps_pbh(sum[0], sum[1]);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sum[i] = _mm512_dpbf16_ps(sum[i], a, a);
  }
  float total = 0;
  for (const __m512& s : sum) total += s[0];
  sink = total * 0;
  return 2.0 * 32 * kSums * static_cast<double>(rounds);
}

__attribute__((target("avx512f,avx512vnni"))) double Int8Avx512(
    int64_t rounds) {
  __m512i sum[kSums];
  for (__m512i& s : sum) s = _mm512_set1_epi32(static_cast<int>(sink));
  const __m512i a = sum[0];
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sum[i] = _mm512_dpbusd_epi32(sum[i], a, a);
  }
  alignas(64) int lanes[16];
  int total = 0;
  for (const __m512i& s : sum) {
    _mm512_store_si512(lanes, s);
    total += lanes[0];
  }
  sink = static_cast<float>(total) * 0;
  return 2.0 * 64 * kSums * static_cast<double>(rounds);
}

// Four sums of 16 by 16, of rows of 64 bytes by columns of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

__attribute__((target("amx-tile"))) void ClearTiles() {
  const TileConfig config;
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
}

__attribute__((target("amx-tile,amx-bf16"))) double Bf16Amx(int64_t rounds) {
  ClearTiles();
  for (int64_t r = 0; r < rounds; ++r) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 2.0 * 16 * 16 * 32 * 4 * static_cast<double>(rounds);
}

__attribute__((target("amx-tile,amx-int8"))) double Int8Amx(int64_t rounds) {
  ClearTiles();
  for (int64_t r = 0; r < rounds; ++r) {
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  _tile_release();
  return 2.0 * 16 * 16 * 64 * 4 * static_cast<double>(rounds);
}

// Asks Linux for leave to use tiles, as a process must before it does.
bool MayUseTiles() {
  constexpr int kArchReqXcompPerm = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

struct Rate {
  double median = 0, least = 0, most = 0;
};

Rate Summary(std::vector<double> rates) {
  std::sort(rates.begin(), rates.end());
  return {rates[rates.size() / 2], rates.front(), rates.back()};
}

// Units per second that `work`, which takes a thread's number and returns the
// units it did, does on so many threads at a time.
Rate Measure(int threads, int repeats,
             const std::function<double(int thread)>& work) {
  std::vector<double> rates;
  for (int i = 0; i < repeats; ++i) {
    std::atomic<int> ready = 0;
    std::vector<double> done(threads);
    std::vector<std::thread> running;
    for (int t = 1; t < threads; ++t) {
      running.emplace_back([&, t] {
        ++ready;
        while (ready < threads) std::this_thread::yield();
        done[t] = work(t);
      });
    }
    while (ready < threads - 1) std::this_thread::yield();
    const auto start = Clock::now();
    ++ready;
    done[0] = work(0);
    for (std::thread& t : running) t.join();
    double all = 0;
    for (const double d : done) all += d;
    rates.push_back(all / Seconds(Clock::now() - start));
  }
  return Summary(rates);
}

// Rounds of a loop that take about a fifth of a second.
int64_t RoundsOf(Loop loop) {
  int64_t rounds = 1000;
  while (true) {
    const auto start = Clock::now();
    loop(rounds);
    const double seconds = Seconds(Clock::now() - start);
    if (seconds > 0.05) {
      return static_cast<int64_t>(static_cast<double>(rounds) * 0.2 / seconds);
    }
    rounds *= 4;
  }
}

bool first = true;
void Print(const char* name, const Rate& rate) {
  std::printf(
      "%s\n \"%s\": {\"median\": %.1f, \"least\": %.1f, \"most\": %.1f}",
      first ? "" : ",", name, rate.median / 1e9, rate.least / 1e9,
      rate.most / 1e9);
  first = false;
}

void PrintLoop(const std::string& name, Loop loop, int cores, int repeats) {
  if (loop == nullptr) return;
  const int64_t rounds = RoundsOf(loop);
  const auto work = [&](int) { return loop(rounds); };
  Print((name + " GFLOP/s, one core").c_str(), Measure(1, repeats, work));
  Print((name + " GFLOP/s").c_str(), Measure(cores, repeats, work));
}

// Bytes of which each thread reads its own, far beyond all caches.
constexpr size_t kThreadBytes = size_t{512} << 20;

double ReadAll(const uint64_t* words) {
  uint64_t sum[8] = {};
  for (size_t i = 0; i < kThreadBytes / 8; i += 8) {
    for (int j = 0; j < 8; ++j) sum[j] += words[i + j];
  }
  uint64_t total = 0;
  for (const uint64_t s : sum) total += s;
  sink = total == 1 ? 1.0f : 0.0f;
  return kThreadBytes;
}

void PrintMemory(int cores, int repeats) {
  std::vector<std::vector<uint64_t>> memory(cores);
  for (auto& m : memory) m.assign(kThreadBytes / 8, 2);
  const auto work = [&](int t) { return ReadAll(memory[t].data()); };
  Print("memory read GB/s, one core", Measure(1, repeats, work));
  Print("memory read GB/s", Measure(cores, repeats, work));
}

// Direct reads of 4 MiB, by four threads, of a nameless file. False without
// such a file.
bool PrintDisk(const char* directory, int repeats) {
  constexpr size_t kPart = size_t{4} << 20, kParts = 256;
  constexpr int kThreads = 4;
  const int fd = open(directory, O_TMPFILE | O_RDWR | O_DIRECT, 0600);
  if (fd < 0) return false;
  std::vector<void*> buffers(kThreads);
  for (void*& b : buffers) {
    b = std::aligned_alloc(4096, kPart);
    std::memset(b, 1, kPart);
  }
  bool good = true;
  for (size_t i = 0; i < kParts && good; ++i) {
    good = pwrite(fd, buffers[0], kPart, static_cast<off_t>(i * kPart)) ==
           static_cast<ssize_t>(kPart);
  }
  good = good && fsync(fd) == 0;
  std::atomic<bool> failed = false;
  const Rate rate =
      good ? Measure(kThreads, repeats,
                     [&](int t) {
                       double read = 0;
                       for (size_t i = t; i < kParts; i += kThreads) {
                         const ssize_t n = pread(fd, buffers[t], kPart,
                                                 static_cast<off_t>(i * kPart));
                         if (n < 0) failed = true;
                         read += static_cast<double>(n);
                       }
                       return read;
                     })
           : Rate();
  for (void* b : buffers) std::free(b);
  close(fd);
  if (!good || failed) return false;
  Print("disk read GB/s", rate);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const char* directory = argc > 1 ? argv[1] : "/var/tmp";
  const int repeats = argc > 2 ? std::max(1, std::atoi(argv[2])) : 5;
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  unsigned a = 0, b = 0, c = 0, d = 0;
  __get_cpuid_count(7, 0, &a, &b, &c, &d);
  const bool amx_bf16 = (d >> 22 & 1) != 0, amx_int8 = (d >> 25 & 1) != 0;
  const bool tiles = (amx_bf16 || amx_int8) && MayUseTiles();
  std::printf("{");
  PrintLoop("f32",
            __builtin_cpu_supports("avx512f") ? F32Avx512
            : __builtin_cpu_supports("fma")   ? F32Avx2
                                              : nullptr,
            cores, repeats);
  PrintLoop("bf16",
            tiles && amx_bf16                      ? Bf16Amx
            : __builtin_cpu_supports("avx512bf16") ? Bf16Avx512
                                                   : nullptr,
            cores, repeats);
  PrintLoop("int8",
            tiles && amx_int8                      ? Int8Amx
            : __builtin_cpu_supports("avx512vnni") ? Int8Avx512
                                                   : nullptr,
            cores, repeats);
  PrintMemory(cores, repeats);
  if (!PrintDisk(directory, repeats)) {
    std::fprintf(stderr, "machine_peak: no direct reads in %s\n", directory);
  }
  std::printf("\n}\n");
  return 0;
}
