// Measures what one stage that holds a whole model computes per second:
// prefill, then decode, on random weights. No tokenizer, pipeline or files take
// part.
//
//   exec_bench [threads] [dtype] [layers] [hidden] [heads] [kv_heads] [inner]
//              [vocab] [sequences] [prompt] [new] [max_step_tokens]
//              [policy] [disk_dir] [memory_MiB] [rounds] [trace]
//
// The shape is Llama's, or that of a model: with its config.json in place of
// `layers`, the five numbers after it count for nothing.

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runtime/exec/stage_loader.h"
#include "runtime/model/checkpoint/dummy_source.h"
#include "runtime/trace/trace.h"
#include "tests/parity/random_source.h"

namespace sluice {
namespace {

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Returns the shape that a file config.json says.
absl::StatusOr<DecoderSpec> ReadSpec(const char* path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return ParseDecoderSpec(text.str());
}

// Seconds that the process's threads have run: what counts on a busy machine.
double CpuSeconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

int Main(int argc, char** argv) {
  const auto arg = [&](int i, int fallback) {
    return argc > i ? std::atoi(argv[i]) : fallback;
  };
  const int threads = arg(1, 2);
  const bool bf16 = argc <= 2 || absl::string_view(argv[2]) != "float32";
  DecoderSpec spec;
  if (argc > 3 && absl::EndsWith(argv[3], ".json")) {
    auto read = ReadSpec(argv[3]);
    if (!read.ok()) {
      std::fprintf(stderr, "%s\n", read.status().ToString().c_str());
      return 2;
    }
    spec = *std::move(read);
  } else {
    spec = LlamaSpec(arg(3, 12), arg(4, 768), arg(5, 12), arg(6, 12),
                     arg(7, 2048), arg(8, 32000));
  }
  const int sequences = arg(9, 64);
  const int prompt = arg(10, 128);
  const int new_tokens = arg(11, 32);
  StageOptions options;
  options.layers = {0, spec.num_layers};
  options.policy.gbs = sequences;
  options.policy.max_step_tokens = std::max(arg(12, 2048), prompt);
  options.policy.dtype = bf16 ? DType::kBFloat16 : DType::kFloat32;
  options.max_model_len = prompt + new_tokens;
  options.max_sequences = sequences;
  options.compute_threads = threads;
  if (argc > 13) {
    const absl::Status status = UpdatePolicy(argv[13], &options.policy);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 2;
    }
  }
  MemoryBudget disk(Tier::kDisk, uint64_t{64} << 30);
  if (argc > 14 && argv[14][0] != '\0') {
    options.disk_dir = argv[14];
    options.disk_budget = &disk;
  }
  const int rounds = std::max(1, arg(16, 5));
  std::unique_ptr<Tracer> tracer;
  if (argc > 17) {
    tracer = std::make_unique<Tracer>(Tracer::Options());
    options.tracer = tracer.get();
  }
  MemoryBudget budget(Tier::kHost, uint64_t(arg(15, 20 << 10)) << 20);
  options.host_budget = &budget;
  const double load_start = Now();
  auto loaded = LoadStage(spec, DummySource(), options, nullptr, nullptr);
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s\n", loaded.status().ToString().c_str());
    return 1;
  }
  StageExecutor& stage = **loaded;
  std::printf("load %.2f s, weights %.0f MB, kv %ld pages, budget %.0f MB\n",
              Now() - load_start, stage.weight_bytes() / 1e6,
              static_cast<long>(stage.kv_pages()), budget.used_bytes() / 1e6);

  std::vector<double> prefill_times, decode_times;
  std::vector<double> prefill_cpu, decode_cpu;
  for (int round = 0; round < rounds; ++round) {
    stage.Reset();
    StepResult result;
    std::vector<int32_t> next(sequences);
    double prefill = 0;
    double cpu = CpuSeconds();
    const int per_step = std::max(1, options.policy.max_step_tokens / prompt);
    for (int first = 0; first < sequences; first += per_step) {
      StepPlan plan;
      MicroBatch batch;
      const int end = std::min(sequences, first + per_step);
      for (int s = first; s < end; ++s) {
        plan.admit.push_back({SequenceId(s), prompt, prompt + new_tokens, {}});
        batch.segments.push_back({SequenceId(s), 0, prompt, true});
        for (int i = 0; i < prompt; ++i) {
          batch.tokens.push_back((s * 7919 + i * 104729) % spec.vocab_size);
        }
      }
      plan.micro_batches = {batch};
      const double start = Now();
      const absl::Status status = stage.RunStep(plan, {}, nullptr, &result);
      prefill += Now() - start;
      if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.ToString().c_str());
        return 1;
      }
      for (int s = first; s < end; ++s) {
        next[s] = result.tokens[s - first].token;
      }
    }
    prefill_cpu.push_back(CpuSeconds() - cpu);
    cpu = CpuSeconds();
    double decode = 0;
    for (int t = 1; t < new_tokens; ++t) {
      StepPlan plan;
      MicroBatch batch;
      for (int s = 0; s < sequences; ++s) {
        batch.segments.push_back({SequenceId(s), prompt + t - 1, 1, true});
        batch.tokens.push_back(next[s]);
      }
      plan.micro_batches = {batch};
      const double start = Now();
      const absl::Status status = stage.RunStep(plan, {}, nullptr, &result);
      decode += Now() - start;
      if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.ToString().c_str());
        return 1;
      }
      for (int s = 0; s < sequences; ++s) next[s] = result.tokens[s].token;
    }
    prefill_times.push_back(prefill);
    decode_times.push_back(decode);
    decode_cpu.push_back(CpuSeconds() - cpu);
  }
  std::sort(prefill_times.begin(), prefill_times.end());
  std::sort(decode_times.begin(), decode_times.end());
  std::sort(prefill_cpu.begin(), prefill_cpu.end());
  std::sort(decode_cpu.begin(), decode_cpu.end());
  const double prefill = prefill_times[rounds / 2];
  const double decode = decode_times[rounds / 2];
  std::printf(
      "prefill %.3f s [%.3f, %.3f], %.0f tokens/s; decode %.3f s [%.3f, %.3f], "
      "%.0f tokens/s; generated %.0f tokens/s in all\n",
      prefill, prefill_times.front(), prefill_times.back(),
      sequences * prompt / prefill, decode, decode_times.front(),
      decode_times.back(), sequences * (new_tokens - 1) / decode,
      sequences * new_tokens / (prefill + decode));
  std::printf("processor time: prefill %.3f s, decode %.3f s\n",
              prefill_cpu[rounds / 2], decode_cpu[rounds / 2]);
  const SweepStats stats = stage.stats();
  std::printf(
      "seconds in all: projections %.3f, attention %.3f, dequantize %.3f, head "
      "%.3f; waiting for weights %.3f, for kv %.3f\n"
      "disk: read %.3f GB in %.3f s, written %.3f GB in %.3f s\n",
      stats.projection_seconds, stats.attention_seconds,
      stats.dequantize_seconds, stats.head_seconds, stats.weight_stall_seconds,
      stats.kv_stall_seconds, 1e-9 * static_cast<double>(stats.disk_read_bytes),
      stats.disk_read_seconds,
      1e-9 * static_cast<double>(stats.disk_write_bytes),
      stats.disk_write_seconds);
  if (tracer != nullptr) {
    const absl::Status status = tracer->WriteJson(argv[17]);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
