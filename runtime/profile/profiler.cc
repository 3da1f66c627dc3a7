#include "runtime/profile/profiler.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "common/threads/clock.h"
#include "common/threads/thread.h"
#include "runtime/collective/shared_collective.h"
#include "runtime/kernels/cpu/gemm.h"
#include "runtime/memory/compute_pool.h"
#include "runtime/memory/cpu_topology.h"
#include "runtime/memory/disk/io_engine.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/profile/attention_probe.h"
#include "runtime/profile/disk_probe.h"
#include "runtime/profile/gemm_probe.h"
#include "runtime/profile/layer_probe.h"
#include "runtime/profile/memory_probe.h"
#include "runtime/profile/rank_probe.h"
#include "runtime/profile/stage_probe.h"

namespace sluice {
namespace {

// Shares of the whole time; they add up to about 1.
constexpr double kDiskShare = 0.2;
constexpr double kMemoryShare = 0.03;
constexpr double kCopyShare = 0.03;
constexpr double kGemmShare = 0.22;
constexpr double kBesideShare = 0.05;
constexpr double kDequantizeShare = 0.02;
constexpr double kCodesShare = 0.15;
constexpr double kAttentionShare = 0.16;
constexpr double kQuantizeShare = 0.01;
constexpr double kThreadShare = 0.04;
constexpr double kLayerShare = 0.08;
constexpr double kSamplingShare = 0.01;
// For each number of ranks, on top of the rest.
constexpr double kRankShare = 0.05;
// The share of a GPU's memory, on top of the rest.
constexpr double kDeviceMemoryShare = 0.02;
constexpr double kDeviceGemmShare = 0.25;
constexpr double kDeviceDequantizeShare = 0.02;
constexpr double kDeviceAttentionShare = 0.12;
constexpr double kDeviceQuantizeShare = 0.01;
constexpr double kDeviceShare = kDeviceMemoryShare + kDeviceGemmShare +
                                kDeviceDequantizeShare + kDeviceAttentionShare +
                                kDeviceQuantizeShare;

// The maximum of a step's rows that a GPU is measured with.
constexpr double kDeviceRows = 2048;
constexpr double kMinDeviceRows = 32;

// The overrun of the whole time from which probes are cut short, and the
// minimum share of its time that each keeps: above 0, for one call.
constexpr double kMaxOverrun = 1.5;
constexpr double kMinHaste = 1e-3;

int32_t DeviceRows(double seconds) {
  return static_cast<int32_t>(
      std::clamp(kDeviceRows * seconds, kMinDeviceRows, kDeviceRows));
}

// The load before, per hardware thread, that disturbs measuring: more than what
// measuring for another worker just before leaves behind.
constexpr double kDisturbing = 0.5;

constexpr DType kDTypes[] = {DType::kBFloat16, DType::kFloat32};
constexpr WeightFormat kWeightFormats[] = {
    WeightFormat::kFull, WeightFormat::kInt8, WeightFormat::kInt4};
// The codes of checkpoints whose rates are measured: GGUF's, and of each kind
// of scaled ones those that most files have.
constexpr absl::string_view kScaledCodes[] = {"E4M3_BF16_B128", "INT4_F16_G128",
                                              "INT8_BF16"};
// Up to a few rows codes bound the time, from some tens on products do.
constexpr int32_t kCodeRows[] = {1, 4, 8, 16, 64, 256};
constexpr KvFormat kKvFormats[] = {KvFormat::kBFloat16, KvFormat::kFloat32,
                                   KvFormat::kInt8, KvFormat::kInt4};

// Whether the error is that of a GPU before compute capability 8.0, which has
// float16 in the place of bfloat16.
bool LacksBFloat16(DType dtype, const absl::Status& status) {
  return dtype == DType::kBFloat16 && absl::IsUnimplemented(status);
}

// One run of the profiler.
class Profiler {
 public:
  Profiler(const ProfilerOptions& options, const ProfileProgress& progress,
           const std::atomic<bool>* cancelled)
      : options_(options),
        progress_(progress),
        cancelled_(cancelled),
        device_budget_(Tier::kDevice, options.device_memory_bytes),
        host_(Tier::kHost, options.host_memory_bytes),
        disk_(Tier::kDisk, options.disk_bytes),
        has_device_(options.device.has_memory()),
        measures_device_(options.device.backend == BackendKind::kCuda),
        device_rows_(DeviceRows(options.seconds)) {}

  absl::StatusOr<MachineProfile> Run() {
    // The load is read before this process adds to it.
    const MachineFacts facts = ReadMachineFacts();
    profile_.machine = MachineId();
    profile_.device = options_.device.backend == BackendKind::kCuda
                          ? DescribeDevice(options_.device)
                          : facts.cpu;
    profile_.device_memory_bytes = options_.device_memory_bytes;
    profile_.host_memory_bytes = options_.host_memory_bytes;
    profile_.disk_bytes = options_.disk_bytes;
    profile_.threads = options_.threads;
    SLUICE_RETURN_IF_ERROR(Disk());
    SLUICE_RETURN_IF_ERROR(Memory());
    SLUICE_RETURN_IF_ERROR(Products());
    SLUICE_RETURN_IF_ERROR(Attention());
    SLUICE_RETURN_IF_ERROR(Rest());
    SLUICE_RETURN_IF_ERROR(Ranks());
    profile_.disturbed =
        hurried_ || facts.load > kDisturbing * facts.hardware_threads;
    if (hurried_) {
      profile_.remarks.push_back(absl::StrFormat(
          "measuring took %.0f s instead of %.0f, so parts of it were cut "
          "short; `sluice profile` does it again when less else runs",
          MonotonicSeconds() - start_, Total() * options_.seconds));
    }
    std::vector<std::string> remarks = Remarks(facts, profile_, io_uring_);
    profile_.remarks.insert(profile_.remarks.end(), remarks.begin(),
                            remarks.end());
    if (progress_) progress_("done", 1);
    return std::move(profile_);
  }

 private:
  // Reports the next probe, which takes `share` of the time, and returns its
  // seconds: fewer if earlier probes overran, as the remaining probes then
  // divide the remaining time.
  double Begin(absl::string_view what, double share) {
    if (progress_) progress_(what, std::min(done_, 1.0));
    const double all = Total() * options_.seconds;
    const double wanted = all * std::max(1 - done_, share / Total());
    const double left = kMaxOverrun * all - (MonotonicSeconds() - start_);
    done_ += share / Total();
    double seconds = share * options_.seconds;
    if (left < wanted) {
      hurried_ = true;
      seconds *= std::max(left / wanted, kMinHaste);
    }
    return seconds;
  }

  // The sum of all wanted shares.
  double Total() const {
    return 1 - (options_.disk_dir.empty() ? kDiskShare + kBesideShare : 0) -
           (has_device_ ? 0 : kCopyShare) +
           (measures_device_ ? kDeviceShare : 0) +
           kRankShare * static_cast<double>(options_.RankCounts().size());
  }

  absl::Status Disk() {
    if (options_.disk_dir.empty()) return absl::OkStatus();
    const double seconds = Begin("disk", kDiskShare);
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<IoEngine> engine,
                            IoEngine::Create({}));
    io_uring_ = engine->backend() == IoEngine::Backend::kUring;
    absl::StatusOr<DiskProfile> disk =
        MeasureDisk(options_.disk_dir, &disk_, &host_, seconds, cancelled_);
    if (absl::IsResourceExhausted(disk.status())) {
      profile_.disk_bytes = 0;
      profile_.remarks.push_back(
          absl::StrCat("no disk tier: ", std::string(disk.status().message())));
      return absl::OkStatus();
    }
    SLUICE_RETURN_IF_ERROR(disk.status());
    profile_.disk = *std::move(disk);
    return absl::OkStatus();
  }

  absl::Status Memory() {
    ComputePool pool(options_.threads, options_.cores);
    SLUICE_ASSIGN_OR_RETURN(
        profile_.host.memory_bytes_per_second,
        MeasureMemoryReads(&pool, &host_, Begin("memory", kMemoryShare),
                           cancelled_));
    if (!has_device_) return absl::OkStatus();
    const double seconds = Begin("copies to and from the device", kCopyShare);
    SLUICE_ASSIGN_OR_RETURN(
        const std::unique_ptr<Device> device,
        CreateDevice(options_.device, &device_budget_, nullptr));
    SLUICE_ASSIGN_OR_RETURN(const CopyRates rates,
                            MeasureCopies(device.get(), &device_budget_, &host_,
                                          seconds, cancelled_));
    profile_.host_to_device_bytes_per_second = rates.to_device_bytes_per_second;
    profile_.device_to_host_bytes_per_second = rates.to_host_bytes_per_second;
    return absl::OkStatus();
  }

  // In one dtype: codes of GGUF become floats in any case.
  absl::Status Codes(ComputePool* pool) {
    std::vector<const CodeFormat*> formats;
    for (const CodeFormat& format : CodeFormats()) formats.push_back(&format);
    for (const absl::string_view name : kScaledCodes) {
      formats.push_back(FindCodeFormat(name));
    }
    for (const CodeFormat* format : formats) {
      const double seconds =
          Begin(absl::StrCat("products of ", format->name),
                kCodesShare / static_cast<double>(formats.size()));
      SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<GemmProbe> probe,
                              GemmProbe::Create(dtype_, *format, pool, &host_));
      CodeRate rate = {.format = std::string(format->name), .dtype = dtype_};
      SLUICE_ASSIGN_OR_RETURN(
          rate.flops_by_rows,
          probe->FlopsByRows(kCodeRows, 0.8 * seconds, cancelled_));
      SLUICE_ASSIGN_OR_RETURN(
          rate.decode_bytes_per_second,
          probe->DequantizedBytes(0.2 * seconds, cancelled_));
      profile_.host.codes.push_back(std::move(rate));
    }
    return absl::OkStatus();
  }

  absl::Status Products() {
    ComputePool pool(options_.threads, options_.cores);
    constexpr double kCases = std::size(kDTypes) * std::size(kWeightFormats);
    double dequantize_seconds = 0;  // per byte
    int dequantized = 0;
    for (const DType dtype : kDTypes) {
      for (const WeightFormat format : kWeightFormats) {
        const double seconds = Begin(
            absl::StrCat(
                "products in ", DTypeName(dtype),
                format == WeightFormat::kFull ? "" : ", weights in ",
                format == WeightFormat::kFull ? "" : WeightFormatName(format)),
            kGemmShare / kCases);
        auto probe = GemmProbe::Create(dtype, format, &pool, &host_);
        // A processor may lack a dtype, but not both.
        if (absl::IsUnimplemented(probe.status()) &&
            dtype == DType::kBFloat16) {
          continue;
        }
        SLUICE_RETURN_IF_ERROR(probe.status());
        SLUICE_ASSIGN_OR_RETURN(RateCurve curve,
                                (*probe)->FlopsByRows(seconds, cancelled_));
        profile_.host.products.push_back({dtype, format, std::move(curve)});
        if (profile_.host.products.size() == 1) {
          SLUICE_RETURN_IF_ERROR(DiskBesideGemms(**probe));
        }
        if (format == WeightFormat::kFull) continue;
        SLUICE_ASSIGN_OR_RETURN(
            const double bytes,
            (*probe)->DequantizedBytes(
                Begin("dequantizing", kDequantizeShare / 4), cancelled_));
        dequantize_seconds += 1 / bytes;
        ++dequantized;
      }
    }
    dtype_ = profile_.host.products.front().dtype;
    SLUICE_RETURN_IF_ERROR(Codes(&pool));
    // The formats hardly differ: the time is that of writing the full weights.
    profile_.host.dequantize_bytes_per_second =
        dequantized / dequantize_seconds;
    SLUICE_ASSIGN_OR_RETURN(
        profile_.host.share_by_threads,
        MeasureShareByThreads(dtype_, options_.threads, options_.cores, &host_,
                              Begin("threads", kThreadShare), cancelled_));
    return absl::OkStatus();
  }

  // Measures the mutual slowdown of disk and cores, which in a sweep work at
  // the same time.
  absl::Status DiskBesideGemms(GemmProbe& products) {
    if (profile_.disk.read_bytes_per_second == 0) return absl::OkStatus();
    constexpr int32_t kRows[] = {256};
    constexpr double kOne = 0.02;  // seconds of one measurement
    const double seconds = Begin("disk beside products", kBesideShare);
    SLUICE_ASSIGN_OR_RETURN(const std::vector<double> alone,
                            products.Flops(kRows, seconds / 3, cancelled_));
    double sum = 0;
    int count = 0;
    SLUICE_ASSIGN_OR_RETURN(
        const double read,
        MeasureDiskBeside(
            [&] {
              const auto rates = products.Flops(kRows, kOne, cancelled_);
              if (!rates.ok()) return rates.status();
              sum += rates->front();
              ++count;
              return absl::OkStatus();
            },
            options_.disk_dir, &disk_, &host_, seconds / 3, cancelled_));
    DiskProfile& disk = profile_.disk;
    disk.read_bytes_per_second = std::min(disk.read_bytes_per_second, read);
    if (count > 0) {
      disk.compute_seconds_per_byte =
          std::max(0.0, 1 - sum / count / alone.front()) / read;
    }
    return absl::OkStatus();
  }

  absl::Status Attention() {
    for (const KvFormat format : kKvFormats) {
      const double seconds =
          Begin(absl::StrCat("attention over ", KvFormatName(format)),
                kAttentionShare / std::size(kKvFormats));
      SLUICE_ASSIGN_OR_RETURN(
          AttentionRate rate,
          MeasureAttention(AttentionOptions(format), seconds, cancelled_));
      profile_.host.attention.push_back(std::move(rate));
    }
    SLUICE_ASSIGN_OR_RETURN(
        profile_.host.quantize_bytes_per_second,
        MeasureKvQuantization(AttentionOptions(KvFormat::kInt4),
                              Begin("quantizing", kQuantizeShare), cancelled_));
    return absl::OkStatus();
  }

  AttentionProbeOptions AttentionOptions(KvFormat format) {
    return {.format = format,
            .threads = options_.threads,
            .cores = options_.cores,
            .budget = &host_};
  }

  absl::Status Rest() {
    SLUICE_ASSIGN_OR_RETURN(
        profile_.host.logit_seconds,
        MeasureSampling(options_.threads, options_.cores, &host_,
                        Begin("sampling", kSamplingShare), cancelled_));
    const double seconds = Begin("layers", kLayerShare);
    const StageProbeOptions on_host = {.dtype = dtype_,
                                       .threads = options_.threads,
                                       .cores = options_.cores,
                                       .host_budget = &host_};
    SLUICE_ASSIGN_OR_RETURN(
        const LayerOverheads host,
        MeasureLayerOverheads(on_host, has_device_ ? seconds / 2 : seconds,
                              cancelled_));
    profile_.host.layer_seconds = host.layer_seconds;
    profile_.host.row_element_seconds = host.row_element_seconds;
    if (!has_device_) return absl::OkStatus();
    StageProbeOptions on_device = on_host;
    on_device.device = options_.device;
    on_device.device_budget = &device_budget_;
    if (measures_device_) {
      on_device.max_rows = device_rows_ / 8;
    }
    absl::StatusOr<LayerOverheads> device =
        MeasureLayerOverheads(on_device, seconds / 2, cancelled_);
    if (LacksBFloat16(dtype_, device.status())) {
      on_device.dtype = DType::kFloat16;
      device = MeasureLayerOverheads(on_device, seconds / 2, cancelled_);
    }
    SLUICE_RETURN_IF_ERROR(device.status());
    if (measures_device_) {
      SLUICE_RETURN_IF_ERROR(DeviceCompute(*device));
    } else {
      // The discrete device is the same processor, and has the same kernels.
      profile_.device_compute = profile_.host;
    }
    profile_.device_compute.layer_seconds = device->layer_seconds;
    profile_.device_compute.row_element_seconds = device->row_element_seconds;
    return absl::OkStatus();
  }

  // Measures the numbers of ranks that may compute a stage.
  absl::Status Ranks() {
    for (const int32_t count : options_.RankCounts()) {
      std::unique_ptr<CollectiveGroup> group =
          std::make_unique<SharedGroup>(count);
      if (options_.exchange != nullptr) {
        SLUICE_ASSIGN_OR_RETURN(group, options_.exchange(count));
      }
      const double seconds =
          Begin(absl::StrCat(count, " ranks together"), kRankShare);
      SLUICE_ASSIGN_OR_RETURN(RankChoice choice,
                              MeasureRanks({.ranks = count,
                                            .dtype = dtype_,
                                            .threads = options_.threads,
                                            .cores = options_.cores,
                                            .own_processors = measures_device_,
                                            .budget = &host_},
                                           group.get(), seconds, cancelled_));
      profile_.rank_choices.push_back(choice);
    }
    if (measures_device_ && !profile_.rank_choices.empty()) {
      profile_.remarks.push_back(
          "the exchange between GPUs was measured with rows in host memory; a "
          "stage's lie on the GPUs, which is faster");
    }
    return absl::OkStatus();
  }

  // Measures a device's rates, except the overheads of layers.
  absl::Status DeviceCompute(const LayerOverheads& overheads) {
    ComputeProfile& compute = profile_.device_compute;
    SLUICE_ASSIGN_OR_RETURN(
        const std::unique_ptr<Device> device,
        CreateDevice(options_.device, &device_budget_, nullptr));
    SLUICE_ASSIGN_OR_RETURN(
        compute.memory_bytes_per_second,
        MeasureDeviceMemory(device.get(), device_budget_,
                            Begin("memory of the device", kDeviceMemoryShare),
                            cancelled_));
    LayerProbeOptions layer = {.backend = options_.device.backend,
                               .device = device.get(),
                               .device_budget = &device_budget_,
                               .host_budget = &host_,
                               .overheads = overheads,
                               .threads = options_.threads,
                               .cores = options_.cores,
                               .max_rows = device_rows_};
    constexpr double kCases = std::size(kDTypes) * std::size(kWeightFormats);
    double dequantize_seconds = 0;  // per byte
    int dequantized = 0;
    for (const DType dtype : kDTypes) {
      for (const WeightFormat format : kWeightFormats) {
        const double seconds =
            Begin(absl::StrCat("the device's products in ", DTypeName(dtype)),
                  kDeviceGemmShare / kCases);
        layer.dtype = dtype;
        layer.format = format;
        auto probe = LayerProbe::Create(layer);
        if (LacksBFloat16(dtype, probe.status())) {
          layer.dtype = DType::kFloat16;
          probe = LayerProbe::Create(layer);
        }
        if (absl::IsUnimplemented(probe.status())) continue;
        SLUICE_RETURN_IF_ERROR(probe.status());
        SLUICE_ASSIGN_OR_RETURN(RateCurve curve,
                                (*probe)->FlopsByRows(seconds, cancelled_));
        compute.products.push_back({layer.dtype, format, std::move(curve)});
        if (format == WeightFormat::kFull) continue;
        SLUICE_ASSIGN_OR_RETURN(
            const double bytes,
            (*probe)->DequantizedBytes(
                Begin("dequantizing there", kDeviceDequantizeShare / kCases),
                cancelled_));
        dequantize_seconds += 1 / bytes;
        ++dequantized;
      }
    }
    if (dequantized == 0) {
      return Unimplemented(DeviceName(options_.device),
                           " computes in none of the dtypes");
    }
    compute.dequantize_bytes_per_second = dequantized / dequantize_seconds;
    AttentionProbeOptions attention = AttentionOptions(KvFormat::kInt4);
    attention.backend = options_.device.backend;
    attention.device = device.get();
    attention.device_budget = &device_budget_;
    attention.max_rows = device_rows_;
    SLUICE_ASSIGN_OR_RETURN(
        compute.quantize_bytes_per_second,
        MeasureKvQuantization(attention,
                              Begin("quantizing there", kDeviceQuantizeShare),
                              cancelled_));
    for (const KvFormat format : kKvFormats) {
      attention.format = format;
      SLUICE_ASSIGN_OR_RETURN(
          AttentionRate rate,
          MeasureAttention(attention,
                           Begin(absl::StrCat("the device's attention over ",
                                              KvFormatName(format)),
                                 kDeviceAttentionShare / std::size(kKvFormats)),
                           cancelled_));
      compute.attention.push_back(std::move(rate));
    }
    // Tokens are sampled where the logits are, which are read once.
    compute.logit_seconds = sizeof(float) / compute.memory_bytes_per_second;
    compute.share_by_threads = RateCurve({{1, 1}});
    return absl::OkStatus();
  }

  const ProfilerOptions& options_;
  const ProfileProgress& progress_;
  const std::atomic<bool>* const cancelled_;
  MemoryBudget device_budget_;
  MemoryBudget host_;
  MemoryBudget disk_;
  const bool has_device_;
  // If false, the device's rates are the host's.
  const bool measures_device_;
  const int32_t device_rows_;
  MachineProfile profile_;
  DType dtype_ = DType::kFloat32;  // the first dtype that has GEMMs
  bool io_uring_ = true;
  const double start_ = MonotonicSeconds();
  double done_ = 0;
  bool hurried_ = false;
};

}  // namespace

std::vector<int32_t> MachineShare::RankCounts() const {
  const auto all = static_cast<int32_t>(ranks.size());
  std::vector<int32_t> counts;
  for (int32_t count = ranks_by_plan ? 2 : all; count >= 2 && count <= all;
       ++count) {
    if (all % count == 0) counts.push_back(count);
  }
  return counts;
}

absl::Status ProfilerOptions::Validate() const {
  const auto wrong = [](const auto&... what) {
    return InvalidArgument("profile: ", what...);
  };
  if (threads < 1) return wrong(threads, " threads");
  if (host_memory_bytes == 0) return wrong("no host memory");
  if (device.has_memory() != (device_memory_bytes > 0)) {
    return wrong("device memory goes with a device that has its own");
  }
  if (disk_dir.empty() != (disk_bytes == 0)) {
    return wrong("a disk directory goes with space on the disk");
  }
  if (!(seconds > 0)) return wrong("no time to measure");
  return absl::OkStatus();
}

absl::StatusOr<MachineProfile> MeasureMachine(
    const ProfilerOptions& options, const ProfileProgress& progress,
    const std::atomic<bool>* cancelled) {
  SLUICE_RETURN_IF_ERROR(CheckDevice(options.device));
  SLUICE_RETURN_IF_ERROR(options.Validate());
  std::optional<absl::StatusOr<MachineProfile>> result;
  // A new thread leaves the caller's affinity as it is.
  Thread thread("profile", [&] {
    if (!options.cores.empty()) {
      BindThisThread(std::span(options.cores).first(1));
    }
    result = Profiler(options, progress, cancelled).Run();
  });
  thread.Join();
  return *std::move(result);
}

std::vector<std::string> Remarks(const MachineFacts& facts,
                                 const MachineProfile& profile, bool io_uring) {
  constexpr double kSlowDisk = 5e8;
  constexpr double kOthers = 0.3;  // in cores
  constexpr uint64_t kFewBytes = uint64_t{512} << 20;
  std::vector<std::string> remarks;
  const DiskProfile& disk = profile.disk;
  if (profile.disk_bytes > 0) {
    if (disk.read_bytes_per_second < kSlowDisk) {
      remarks.push_back(absl::StrFormat(
          "slow disk: it reads %.0f MB/s, so that each GB of weights on it "
          "takes %.1f s of every sweep; another directory may be faster",
          disk.read_bytes_per_second / 1e6, 1e9 / disk.read_bytes_per_second));
    }
    if (!disk.direct) {
      remarks.push_back(
          "no O_DIRECT in the disk directory: data goes through the page "
          "cache, which costs memory and processor time, and rates are those "
          "of the cache; tmpfs, for one, is memory, not disk");
    }
    if (!io_uring) {
      const bool limited = facts.locked_bytes_limit < (uint64_t{8} << 20);
      remarks.push_back(absl::StrCat(
          "no io_uring: the disk is read by threads, which takes more "
          "processor time",
          limited
              ? absl::StrCat("; this process may lock only ",
                             facts.locked_bytes_limit >> 10,
                             " KiB of memory (ulimit -l), which is too little "
                             "for it before Linux 5.12")
              : "; the kernel is old, or forbids it (seccomp)"));
    }
  }
  if (profile.host.Products(DType::kBFloat16, WeightFormat::kFull) == nullptr) {
    remarks.push_back("no products in bfloat16: models run in float32");
  } else if (!absl::StrContains(facts.cpu, "AMX") &&
             !absl::StrContains(facts.cpu, "bf16")) {
    remarks.push_back(
        "neither AMX nor AVX-512 bf16: bfloat16 saves memory, but its "
        "products are not faster than float32's");
  }
  if (profile.host_memory_bytes < kFewBytes) {
    remarks.push_back(absl::StrFormat(
        "measured within %d MiB of memory, some of which the processor's "
        "caches hold: products of few rows may be slower than this",
        profile.host_memory_bytes >> 20));
  }
  if (facts.load > kOthers) {
    remarks.push_back(absl::StrFormat(
        "other work ran here (load %.1f on %d hardware threads, last minute): "
        "measure again when the machine is quiet",
        facts.load, facts.hardware_threads));
  }
  if (facts.cpu_quota > 0 && facts.cpu_quota < profile.threads) {
    remarks.push_back(absl::StrFormat(
        "a control group gives this process %.2f cores' worth of time for its "
        "%d threads: rates of computing are those of the long run, not of the "
        "bursts that it allows",
        facts.cpu_quota, profile.threads));
  }
  if (profile.threads > facts.hardware_threads && facts.hardware_threads > 0) {
    remarks.push_back(
        absl::StrFormat("%d threads compute, but there are %d hardware threads",
                        profile.threads, facts.hardware_threads));
  }
  return remarks;
}

absl::StatusOr<std::string> MachineFingerprint(const ProfilerOptions& options,
                                               const std::string& version) {
  const MachineFacts facts = ReadMachineFacts();
  ComputePool pool(1);
  FingerprintParts parts;
  parts.cpu = facts.cpu;
  parts.cpu_quota = facts.cpu_quota;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const auto engine = GemmEngine::Create(dtype, &pool);
    if (absl::IsUnimplemented(engine.status())) continue;
    SLUICE_RETURN_IF_ERROR(engine.status());
    parts.kernels = (*engine)->LayoutKey();
    break;
  }
  parts.device = DescribeDevice(options.device);
  parts.threads = options.threads;
  parts.cores = options.cores;
  parts.memory_bytes = facts.memory_bytes;
  parts.host_memory_bytes = options.host_memory_bytes;
  parts.device_memory_bytes = options.device_memory_bytes;
  parts.disk_bytes = options.disk_bytes;
  parts.disk_dir = options.disk_dir;
  parts.version = version;
  parts.rank_counts = options.RankCounts();
  return Fingerprint(parts);
}

}  // namespace sluice
