// Shows whether a machine's profile predicts what the executor takes: layers of
// several shapes, prefill and decode, in several number formats, beside what
// the profile's rates say. Prints a row for each, then the worst.
//
//   profile_bench [PROFILE.json [THREADS [CASE]]]
//
// Without a file (or with "-") the machine is measured first.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/codec/profile_json.h"
#include "common/threads/clock.h"
#include "runtime/exec/stage_loader.h"
#include "runtime/exec/step_inputs.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/memory/cpu_topology.h"
#include "runtime/memory/host_memory.h"
#include "runtime/model/checkpoint/dummy_source.h"
#include "runtime/profile/measure.h"
#include "runtime/profile/profiler.h"
#include "tests/parity/random_source.h"

namespace sluice {
namespace {

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

struct Case {
  const char* name;
  DType dtype;
  WeightFormat weights, kv;
  int32_t layers, hidden, heads, kv_heads, inner;
  int32_t sequences, prompt, new_tokens;
};

constexpr WeightFormat kNone = WeightFormat::kFull;
constexpr Case kCases[] = {
    {"1.1B", DType::kBFloat16, kNone, kNone, 4, 2048, 32, 4, 5632, 64, 128, 24},
    {"1.1B", DType::kBFloat16, kNone, kNone, 4, 2048, 32, 4, 5632, 320, 32, 8},
    {"1.1B", DType::kBFloat16, kNone, kNone, 4, 2048, 32, 4, 5632, 16, 1024, 8},
    {"1.1B int4", DType::kBFloat16, WeightFormat::kInt4, kNone, 4, 2048, 32, 4,
     5632, 64, 128, 24},
    {"1.1B int8", DType::kBFloat16, WeightFormat::kInt8, kNone, 4, 2048, 32, 4,
     5632, 8, 128, 24},
    {"1.1B kv int4", DType::kBFloat16, kNone, WeightFormat::kInt4, 4, 2048, 32,
     4, 5632, 32, 1024, 8},
    {"small", DType::kFloat32, kNone, kNone, 12, 768, 12, 12, 2048, 64, 128,
     24},
    {"small", DType::kFloat32, kNone, kNone, 12, 768, 12, 12, 2048, 4, 128, 24},
    {"small", DType::kBFloat16, kNone, kNone, 12, 768, 12, 12, 2048, 64, 128,
     24},
    {"7B", DType::kBFloat16, kNone, kNone, 2, 4096, 32, 32, 11008, 32, 128, 12},
};

struct Times {
  double prefill = 0, decode = 0;  // of a layer of a step
};

Times Predict(const ComputeProfile& c, const Case& k) {
  const ProductRate* products = c.Products(k.dtype, k.weights);
  const KvFormat format = k.kv == WeightFormat::kInt4
                              ? KvFormat::kInt4
                              : UnquantizedKvFormat(k.dtype);
  const AttentionRate* attention = c.Attention(format);
  if (products == nullptr || attention == nullptr) {
    Must(absl::NotFoundError("the profile has no such number format"));
  }
  const double head_dim = k.hidden / k.heads;
  const double kv_width = head_dim * k.kv_heads;
  const double elements =
      2.0 * k.hidden * (k.hidden + kv_width) + 3.0 * k.hidden * k.inner;
  const KvLayout layout{1, k.kv_heads, static_cast<int32_t>(head_dim), format};
  const double position_bytes =
      static_cast<double>(layout.layer_page_bytes()) / kPageTokens;
  const auto layer = [&](double rows) {
    return c.layer_seconds + rows * k.hidden * c.row_element_seconds +
           2 * rows * elements / products->flops_by_rows.At(rows);
  };
  Times times;
  // One step of so many whole prompts.
  const double prompts = std::max(1, 2048 / k.prompt);
  const double pairs = prompts * k.prompt * (k.prompt + 1.0) / 2;
  times.prefill =
      layer(prompts * k.prompt) +
      4 * k.hidden * pairs /
          attention->prefill_flops_by_context.At((k.prompt + 1) / 2.0);
  const double context = k.prompt + (k.new_tokens + 1) / 2.0;
  times.decode =
      layer(k.sequences) + k.sequences * context * position_bytes /
                               attention->decode_bytes_by_context.At(context);
  return times;
}

Times Measure(const Case& k, int threads, double* attention_share) {
  const DecoderSpec spec =
      LlamaSpec(k.layers + 2, k.hidden, k.heads, k.kv_heads, k.inner, 64);
  MemoryBudget budget(Tier::kHost, uint64_t{16} << 30);
  StageOptions options;
  options.layers = {1, 1 + k.layers};
  options.policy.gbs = k.sequences;
  options.policy.max_step_tokens = std::max({2048, k.sequences, k.prompt});
  options.policy.dtype = k.dtype;
  options.policy.compress_weights = k.weights;
  options.policy.compress_kv = k.kv;
  options.max_model_len = k.prompt + k.new_tokens + 1;
  options.max_sequences = k.sequences;
  options.compute_threads = threads;
  options.host_budget = &budget;
  auto stage = LoadStage(spec, DummySource(), options, nullptr, nullptr);
  Must(stage.status());
  ActivationPool pool;
  const auto run = [&](const StepPlan& plan) {
    int64_t rows = 0;
    for (const Segment& s : plan.micro_batches[0].segments) {
      rows += s.num_tokens;
    }
    auto x = pool.Acquire(rows, k.hidden);
    for (int64_t i = 0; i < rows * k.hidden; ++i) {
      x->data()[i] = static_cast<float>(i % 1013) / 1013 - 0.5f;
    }
    StepResult result;
    const double start = MonotonicSeconds();
    HeldInputs inputs({std::move(x)});
    Must((*stage)->RunStep(
        plan, &inputs,
        [](int32_t, std::shared_ptr<ActivationBuffer>) {
          return absl::OkStatus();
        },
        &result));
    return (MonotonicSeconds() - start) / k.layers;
  };
  std::vector<double> prefill, decode;
  SweepStats before, after;
  for (int round = 0; round < 2; ++round) {
    (*stage)->Reset();
    const int per_step = std::max(1, 2048 / k.prompt);
    for (int first = 0; first < k.sequences; first += per_step) {
      StepPlan plan;
      MicroBatch& batch = plan.micro_batches.emplace_back();
      const int end = std::min(k.sequences, first + per_step);
      for (int s = first; s < end; ++s) {
        plan.admit.push_back(
            {SequenceId(s), k.prompt, k.prompt + k.new_tokens + 1});
        batch.segments.push_back({SequenceId(s), 0, k.prompt, true});
        batch.tokens.resize(batch.tokens.size() + k.prompt);
      }
      const double took = run(plan);
      if (end - first == per_step) prefill.push_back(took);
    }
    before = (*stage)->stats();
    for (int t = 0; t < k.new_tokens; ++t) {
      StepPlan plan;
      MicroBatch& batch = plan.micro_batches.emplace_back();
      for (int s = 0; s < k.sequences; ++s) {
        batch.segments.push_back({SequenceId(s), k.prompt + t, 1, true});
        batch.tokens.push_back(0);
      }
      decode.push_back(run(plan));
    }
    after = (*stage)->stats();
  }
  const double attending = after.attention_seconds - before.attention_seconds;
  *attention_share = attending / (attending + after.projection_seconds -
                                  before.projection_seconds);
  return {prefill.empty() ? 0 : TypicalSeconds(prefill),
          TypicalSeconds(decode)};
}

int Main(int argc, char** argv) {
  const std::vector<int> cores = UsableCores();
  const int threads = argc > 2 ? std::atoi(argv[2]) : UsableCoreCount(cores);
  MachineProfile profile;
  if (argc > 1 && std::string(argv[1]) != "-") {
    auto read = ReadProfileFile(argv[1]);
    Must(read.status());
    profile = *std::move(read);
  } else {
    ProfilerOptions options;
    options.threads = threads;
    options.host_memory_bytes = DefaultHostMemory();
    const double start = MonotonicSeconds();
    auto made = MeasureMachine(options, nullptr, nullptr);
    Must(made.status());
    profile = *std::move(made);
    std::printf("%smeasured in %.1f s\n", ProfileToJson(profile).c_str(),
                MonotonicSeconds() - start);
  }
  const std::string only = argc > 3 ? argv[3] : "";
  double worst = 0;
  for (const Case& k : kCases) {
    if (!only.empty() && only != k.name) continue;
    const Times predicted = Predict(profile.compute(), k);
    double share = 0;
    const Times measured = Measure(k, threads, &share);
    const auto row = [&](const char* phase, int rows, double p, double m) {
      if (m == 0) return;
      worst = std::max(worst, std::abs(p / m - 1));
      std::printf(
          "%-14s %-8s %-8s %5d rows  predicted %9.1f us  measured "
          "%9.1f us  %+5.1f %%\n",
          k.name, std::string(DTypeName(k.dtype)).c_str(), phase, rows, 1e6 * p,
          1e6 * m, 100 * (p / m - 1));
      std::fflush(stdout);
    };
    row("prefill", std::max(1, 2048 / k.prompt) * k.prompt, predicted.prefill,
        measured.prefill);
    row("decode", k.sequences, predicted.decode, measured.decode);
    std::printf("   decode attention %.0f %%\n", 100 * share);
  }
  std::printf("worst: %.1f %%\n", 100 * worst);
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
