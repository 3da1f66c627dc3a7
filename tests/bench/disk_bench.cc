// Measures how fast the disk is, through IoEngine and bare.
//
//   disk_bench DIR [GB [REPEATS [BUSY]]]
//
// Sequential O_DIRECT reads of one file: a loop of pread of one thread beside
// the engine, for request sizes and queue depths; then writes. Prints a table
// of medians with the range of the repeats, GB/s, and the processor time that a
// GB took. Repeats are interleaved, since disks of clouds change their speed.

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/threads/thread.h"
#include "runtime/memory/checksum.h"
#include "runtime/memory/disk/disk_file.h"
#include "runtime/memory/disk/io_engine.h"
#include "runtime/memory/host_buffer.h"

namespace sluice {
namespace {

constexpr size_t kBuffer = size_t{256} << 20;

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double CpuSeconds() {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) +
           1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

struct Case {
  std::string name;
  size_t request_bytes;
  int depth;  // 0: a loop of one thread
  IoEngine::Backend backend = IoEngine::Backend::kUring;
  bool write = false;
  std::vector<double> rates = {};  // GB/s
  std::vector<double> cpu = {};    // seconds per GB
};

void RunCase(DiskFile& file, std::span<std::byte> memory, Case* c) {
  std::unique_ptr<IoEngine> engine;
  if (c->depth > 0) {
    auto made = IoEngine::Create({.queue_depth = c->depth,
                                  .request_bytes = c->request_bytes,
                                  .backend = c->backend,
                                  .threads = c->depth});
    Must(made.status());
    engine = *std::move(made);
  }
  const double start = Now();
  const double cpu = CpuSeconds();
  const size_t step = engine ? memory.size() / 2 : c->request_bytes;
  IoCompletion done[2];
  for (uint64_t at = 0, i = 0; at < file.bytes(); at += step, ++i) {
    const auto half = memory.subspan((i % 2) * step, step);
    if (engine == nullptr) {
      Must(c->write ? file.Write(at, half) : file.Read(at, half));
      continue;
    }
    Must(done[i % 2].Wait());
    done[i % 2].Expect(1);
    if (c->write) {
      engine->Write(file, at, half, &done[i % 2]);
    } else {
      engine->Read(file, at, half, &done[i % 2]);
    }
  }
  Must(done[0].Wait());
  Must(done[1].Wait());
  const double gb = 1e-9 * static_cast<double>(file.bytes());
  c->rates.push_back(gb / (Now() - start));
  c->cpu.push_back((CpuSeconds() - cpu) / gb);
}

void Print(Case& c) {
  std::sort(c.rates.begin(), c.rates.end());
  std::sort(c.cpu.begin(), c.cpu.end());
  std::printf(
      "%-22s %6zu KiB  depth %3d  %6.3f GB/s (%.3f..%.3f)  %.3f cpu s/GB\n",
      c.name.c_str(), c.request_bytes >> 10, c.depth,
      c.rates[c.rates.size() / 2], c.rates.front(), c.rates.back(),
      c.cpu[c.cpu.size() / 2]);
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: disk_bench DIR [GB [REPEATS [BUSY]]]\n");
    return 2;
  }
  const uint64_t bytes =
      static_cast<uint64_t>(argc > 2 ? std::atof(argv[2]) : 4.0) *
      (uint64_t{1} << 30);
  const int repeats = argc > 3 ? std::atoi(argv[3]) : 3;
  MemoryBudget disk(Tier::kDisk, UINT64_MAX);
  MemoryBudget host(Tier::kHost, UINT64_MAX);
  auto file = DiskFile::CreateTemporary(argv[1], "bench", bytes, &disk);
  Must(file.status());
  auto buffer = HostBuffer::Create("bench", kBuffer, &host);
  Must(buffer.status());
  const std::span<std::byte> memory(buffer->as<std::byte>(), kBuffer);
  for (size_t i = 0; i < kBuffer; i += 8) {
    *reinterpret_cast<uint64_t*>(memory.data() + i) = i * 0x9e3779b97f4a7c15u;
  }
  {
    const double start = Now();
    uint64_t sum = 0;
    for (int i = 0; i < 8; ++i) sum ^= BlockChecksum(memory) + i;
    std::printf("checksum %.2f GB/s (%llx)\n", 8e-9 * kBuffer / (Now() - start),
                static_cast<unsigned long long>(sum));
  }

  Case first{"first write", size_t{1} << 20, 32, IoEngine::Backend::kUring,
             true};
  RunCase(**file, memory, &first);
  Print(first);

  std::vector<Case> cases;
  for (size_t kib : {1024, 4096}) cases.push_back({"pread loop", kib << 10, 0});
  for (size_t kib : {128, 256, 512, 1024, 2048, 4096}) {
    for (int depth : {1, 2, 4, 8, 16, 32, 64}) {
      cases.push_back({"io_uring read", kib << 10, depth});
    }
  }
  for (int depth : {4, 8, 16}) {
    cases.push_back(
        {"threads read", size_t{1} << 20, depth, IoEngine::Backend::kThreads});
  }
  for (size_t kib : {256, 1024, 4096}) {
    for (int depth : {4, 16, 32}) {
      cases.push_back({"io_uring write", kib << 10, depth,
                       IoEngine::Backend::kUring, true});
    }
  }
  cases.push_back(
      {"threads write", size_t{1} << 20, 8, IoEngine::Backend::kThreads, true});
  std::atomic<bool> stop = false;
  std::vector<Thread> busy;
  for (int i = 0; i < (argc > 4 ? std::atoi(argv[4]) : 0); ++i) {
    busy.emplace_back("busy", [&stop] {
      while (!stop.load(std::memory_order_relaxed)) {
      }
    });
  }
  for (int r = 0; r < repeats; ++r) {
    for (Case& c : cases) RunCase(**file, memory, &c);
  }
  stop = true;
  busy.clear();
  for (Case& c : cases) Print(c);
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
