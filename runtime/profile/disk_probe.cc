#include "runtime/profile/disk_probe.h"

#include <algorithm>
#include <memory>
#include <span>

#include "common/blocks.h"
#include "common/status_macros.h"
#include "common/threads/clock.h"
#include "common/threads/thread.h"
#include "runtime/memory/disk/disk_file.h"
#include "runtime/memory/disk/io_engine.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/profile/measure.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxFile = uint64_t{1} << 30;
constexpr uint64_t kMinFile = uint64_t{16} << 20;
// The size of jobs, two of which are in flight: large enough for any depth.
constexpr size_t kJob = size_t{8} << 20;
// Shares of the whole time: the first write, then each of reads and writes as
// the runtime makes them; the table gets the rest.
constexpr double kFirstShare = 0.25;
constexpr double kMainShare = 0.2;

struct Case {
  size_t request_bytes;
  int depth;
};
constexpr Case kTable[] = {
    {4096, 1},
    {4096, 32},
    {size_t{64} << 10, 1},
    {size_t{64} << 10, 32},
    {size_t{256} << 10, 8},
    {size_t{1} << 20, 1},
    {size_t{1} << 20, 8},
    {size_t{4} << 20, 8},
};

class DiskProbe {
 public:
  DiskProbe(DiskFile* file, std::span<std::byte> memory,
            const std::atomic<bool>* cancelled)
      : file_(file), memory_(memory), cancelled_(cancelled) {}

  // Measures bytes per second of reads or writes from the file's beginning,
  // repeatedly within `limit` bytes, for `seconds` and at least two jobs.
  // `*covered`, if given, ends the run at the file's end; it gets the bytes.
  absl::StatusOr<double> Run(const IoEngine::Options& options, bool write,
                             uint64_t limit, double seconds,
                             uint64_t* covered = nullptr) {
    IoCompletion done[2];  // outlives the engine
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<IoEngine> engine,
                            IoEngine::Create(options));
    // Small requests at a small depth are slow: a job of them must not use up
    // the whole time.
    const size_t job = std::min<size_t>(
        kJob,
        options.request_bytes * static_cast<size_t>(options.queue_depth) * 4);
    absl::Status status;
    uint64_t bytes = 0;
    const double start = MonotonicSeconds();
    for (int turn = 0; status.ok(); turn ^= 1) {
      const uint64_t at = bytes % limit;
      const size_t step = std::min<uint64_t>(job, limit - at);
      status = done[turn].Wait();
      if (status.ok()) status = CheckNotCancelled(cancelled_);
      if (!status.ok()) break;
      done[turn].Expect(1);
      const auto part = memory_.subspan(static_cast<size_t>(turn) * kJob, step);
      if (write) {
        engine->Write(*file_, at, part, &done[turn]);
      } else {
        engine->Read(*file_, at, part, &done[turn]);
      }
      bytes += step;
      if (covered != nullptr && bytes >= limit) break;
      if (bytes >= 2 * job && MonotonicSeconds() - start > seconds) break;
    }
    for (IoCompletion& half : done) {
      const absl::Status ended = half.Wait();
      if (status.ok()) status = ended;
    }
    SLUICE_RETURN_IF_ERROR(status);
    const double took = MonotonicSeconds() - start;
    if (covered != nullptr) *covered = std::min<uint64_t>(bytes, limit);
    return static_cast<double>(bytes) / std::max(took, 1e-9);
  }

 private:
  DiskFile* const file_;
  const std::span<std::byte> memory_;
  const std::atomic<bool>* const cancelled_;
};

// The file and memory to measure with.
struct Scratch {
  HostBuffer buffer;
  std::unique_ptr<DiskFile> file;
  uint64_t bytes = 0;

  std::span<std::byte> memory() const {
    return std::span<std::byte>(buffer.as<std::byte>(), 2 * kJob);
  }
};

absl::StatusOr<Scratch> MakeScratch(const std::string& dir, uint64_t max_bytes,
                                    MemoryBudget* disk, MemoryBudget* memory) {
  Scratch scratch;
  SLUICE_ASSIGN_OR_RETURN(const uint64_t free, FreeDiskBytes(dir));
  scratch.bytes =
      RoundDownToDiskBlock(std::min({max_bytes, disk->free_bytes(), free / 4}));
  if (scratch.bytes < kMinFile) {
    return ResourceExhausted(
        "the disk of ", dir,
        " has no room for a file to measure it with: ", free,
        " bytes are free, of which ", disk->free_bytes(),
        " may be used; it takes ", kMinFile, ", and four times as many free");
  }
  SLUICE_ASSIGN_OR_RETURN(scratch.buffer,
                          HostBuffer::Create("profile", 2 * kJob, memory));
  // The data is not zeros, which a file system may not store at all.
  FillFloats(scratch.buffer.as<float>(), 2 * kJob / sizeof(float));
  SLUICE_ASSIGN_OR_RETURN(
      scratch.file,
      DiskFile::CreateTemporary(dir, "profile", scratch.bytes, disk));
  return scratch;
}

}  // namespace

absl::StatusOr<double> MeasureDiskBeside(absl::FunctionRef<absl::Status()> body,
                                         const std::string& dir,
                                         MemoryBudget* disk,
                                         MemoryBudget* memory, double seconds,
                                         const std::atomic<bool>* cancelled) {
  SLUICE_ASSIGN_OR_RETURN(const Scratch scratch,
                          MakeScratch(dir, kMaxFile / 4, disk, memory));
  DiskProbe probe(scratch.file.get(), scratch.memory(), cancelled);
  uint64_t written = 0;
  SLUICE_RETURN_IF_ERROR(
      probe.Run(IoEngine::Options(), true, scratch.bytes, seconds, &written)
          .status());
  absl::StatusOr<double> rate = absl::UnknownError("not measured");
  std::atomic<bool> ended = false;
  Thread reader("profile-reads", [&] {
    rate = probe.Run(IoEngine::Options(), false, written, seconds);
    ended = true;
  });
  absl::Status status;
  while (!ended && status.ok()) status = body();
  reader.Join();
  SLUICE_RETURN_IF_ERROR(status);
  return rate;
}

absl::StatusOr<DiskProfile> MeasureDisk(const std::string& dir,
                                        MemoryBudget* disk,
                                        MemoryBudget* memory, double seconds,
                                        const std::atomic<bool>* cancelled) {
  SLUICE_ASSIGN_OR_RETURN(const Scratch scratch,
                          MakeScratch(dir, kMaxFile, disk, memory));
  DiskProbe probe(scratch.file.get(), scratch.memory(), cancelled);
  const uint64_t bytes = scratch.bytes;
  DiskProfile profile;
  profile.direct = scratch.file->direct();
  // The file is written first, as unwritten parts are not read from disk.
  const IoEngine::Options runtime;
  uint64_t written = 0;
  SLUICE_RETURN_IF_ERROR(
      probe.Run(runtime, true, bytes, seconds * kFirstShare, &written)
          .status());
  SLUICE_ASSIGN_OR_RETURN(
      profile.write_bytes_per_second,
      probe.Run(runtime, true, written, seconds * kMainShare));
  SLUICE_ASSIGN_OR_RETURN(
      profile.read_bytes_per_second,
      probe.Run(runtime, false, written, seconds * kMainShare));
  const double each = seconds * (1 - kFirstShare - 2 * kMainShare) /
                      (2 * static_cast<double>(std::size(kTable)));
  for (const Case& c : kTable) {
    IoEngine::Options options;
    options.request_bytes = c.request_bytes;
    options.queue_depth = c.depth;
    DiskRate rate = {c.request_bytes, c.depth};
    SLUICE_ASSIGN_OR_RETURN(rate.read_bytes_per_second,
                            probe.Run(options, false, written, each));
    SLUICE_ASSIGN_OR_RETURN(rate.write_bytes_per_second,
                            probe.Run(options, true, written, each));
    profile.rates.push_back(rate);
  }
  profile.rates.push_back({runtime.request_bytes, runtime.queue_depth,
                           profile.read_bytes_per_second,
                           profile.write_bytes_per_second});
  return profile;
}

}  // namespace sluice
