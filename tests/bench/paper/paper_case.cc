#include "tests/bench/paper/paper_case.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "scheduler/steps/workload.h"
#include "tests/bench/paper/flexgen_overlap.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

// LM-Offload names only the product of GPU batch and number of batches, and 64
// for one GPU batch (section 3.1).
constexpr int32_t kGbsOfBlocks = 64;

double HostMemory(absl::string_view hardware) {
  return hardware == "t4" ? 208 * kGiB : 240e9;
}

DecoderSpec Model(int32_t layers, int32_t hidden, int32_t heads) {
  DecoderSpec model;
  model.num_layers = layers;
  model.hidden_size = model.embed_dim = hidden;
  model.num_heads = model.num_kv_heads = heads;
  model.head_dim = hidden / heads;
  model.rotaries = {{.dim = model.head_dim}};
  return model;
}

DecoderSpec Opt(int32_t layers, int32_t hidden, int32_t heads) {
  DecoderSpec model = Model(layers, hidden, heads);
  model.intermediate_size = 4 * hidden;
  model.vocab_size = 50272;
  model.norm = NormKind::kLayerNorm;
  model.qkv_bias = model.out_bias = model.mlp_bias = true;
  model.positions = PositionKind::kLearned;
  model.rotaries.clear();
  model.max_positions = 2048;
  model.position_offset = 2;
  model.gated_mlp = false;
  model.tied_embeddings = true;
  return model;
}

DecoderSpec Llama(int32_t layers, int32_t hidden, int32_t heads,
                  int32_t intermediate) {
  DecoderSpec model = Model(layers, hidden, heads);
  model.intermediate_size = intermediate;
  model.vocab_size = 32000;
  return model;
}

}  // namespace

std::string PublishedRun::Name() const {
  std::string name = absl::StrCat(hardware, " ", model, " ", prompt, "+",
                                  output, " ", gbs, "x", num_microbatches);
  if (compress_weights) absl::StrAppend(&name, " 4-bit weights");
  if (compress_kv) absl::StrAppend(&name, " 4-bit KV");
  if (!overlap) absl::StrAppend(&name, ", no overlap");
  if (!host_attention && kv_cache.device < 1) {
    absl::StrAppend(&name, ", GPU attention");
  }
  return name;
}

absl::StatusOr<std::vector<PublishedRun>> ParsePublishedRuns(
    absl::string_view csv) {
  std::vector<PublishedRun> runs;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(csv, '\n')) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    const auto bad = [&] {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " is no published run: ", line));
    };
    if (fields.size() != 14) return bad();
    if (fields[0] == "hw") continue;
    if (fields[0] != "t4" && fields[0] != "a100") return bad();
    PublishedRun run;
    run.hardware = fields[0];
    run.model = fields[1];
    int32_t percent[6];
    bool ok = absl::SimpleAtoi(fields[2], &run.prompt) &&
              absl::SimpleAtoi(fields[3], &run.output) &&
              absl::SimpleAtoi(fields[4], &run.gbs) &&
              absl::SimpleAtoi(fields[5], &run.num_microbatches) &&
              absl::SimpleAtod(fields[13], &run.tokens_per_second);
    for (int i = 0; i < 6; ++i) {
      ok = ok && absl::SimpleAtoi(fields[6 + i], &percent[i]);
    }
    ok = ok && run.prompt > 0 && run.output > 0 && run.gbs > 0 &&
         run.num_microbatches > 0 && run.tokens_per_second > 0;
    if (!ok) return bad();
    const auto tiers = [&](int first) {
      const double device = percent[first] / 100.0;
      const double host = percent[first + 1] / 100.0;
      return TierFractions{device, host,
                           (100 - percent[first] - percent[first + 1]) / 100.0};
    };
    run.weights = tiers(0);
    run.kv_cache = tiers(2);
    run.activations = tiers(4);
    for (const absl::string_view flag : absl::StrSplit(fields[12], ';')) {
      if (flag == "nooverlap") {
        run.overlap = false;
      } else if (flag == "cc") {
        run.host_attention = true;
      } else if (flag == "compW") {
        run.compress_weights = true;
      } else if (flag == "compC") {
        run.compress_kv = true;
      } else if (!flag.empty()) {
        return bad();
      }
    }
    if (run.hardware == "a100") {
      const int32_t block = run.gbs;
      run.num_microbatches = std::max(
          1, static_cast<int32_t>(
                 std::lround(static_cast<double>(block) / kGbsOfBlocks)));
      run.gbs = (block + run.num_microbatches - 1) / run.num_microbatches;
    }
    runs.push_back(run);
  }
  return runs;
}

absl::StatusOr<std::vector<PublishedRun>> ReadRuns(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("can't read ", path));
  std::stringstream text;
  text << file.rdbuf();
  return ParsePublishedRuns(text.str());
}

absl::StatusOr<std::vector<PublishedRun>> MeasuredRuns() {
  return ReadRuns(TestsDir() + "/bench/paper/flexgen_measured.csv");
}
absl::StatusOr<std::vector<PublishedRun>> MoreRuns() {
  return ReadRuns(TestsDir() + "/bench/paper/flexgen_more.csv");
}

absl::StatusOr<DecoderSpec> PaperModel(absl::string_view name) {
  if (name == "opt-6.7b") return Opt(32, 4096, 32);
  if (name == "opt-13b") return Opt(40, 5120, 40);
  if (name == "opt-30b") return Opt(48, 7168, 56);
  if (name == "opt-66b") return Opt(64, 9216, 72);
  if (name == "opt-175b") return Opt(96, 12288, 96);
  if (name == "llama-30b") return Llama(60, 6656, 52, 17920);
  if (name == "llama-65b") return Llama(80, 8192, 64, 22016);
  return absl::NotFoundError(absl::StrCat("no sizes of ", name));
}

TierFractions PlacedWeights(const DecoderSpec& model,
                            const TierFractions& requested) {
  const double hidden = model.hidden_size, inner = model.intermediate_size;
  const double square = hidden * hidden, wide = hidden * inner;
  // FlexGen lists the tensors in this order: q, k, v and out, up and down, each
  // with its bias, and the norm's two vectors. Llama has gate, up and down, and
  // the norm's one.
  const std::vector<double> attention =
      model.gated_mlp
          ? std::vector<double>{square, square, square, square, hidden}
          : std::vector<double>{square, hidden, square, hidden, square,
                                hidden, square, hidden, hidden, hidden};
  const std::vector<double> mlp =
      model.gated_mlp
          ? std::vector<double>{wide, wide, wide, hidden}
          : std::vector<double>{wide, inner, wide, hidden, hidden, hidden};
  double all = 0;
  TierFractions placed{0, 0, 0};
  for (const std::vector<double>& half : {attention, mlp}) {
    double sum = 0, before = 0;
    for (const double bytes : half) sum += bytes;
    all += sum;
    for (const double bytes : half) {
      const double middle = (before + bytes / 2) / sum;
      before += bytes;
      if (middle < requested.disk) {
        placed.disk += bytes;
      } else if (middle < requested.disk + requested.host) {
        placed.host += bytes;
      } else {
        placed.device += bytes;
      }
    }
  }
  return {placed.device / all, placed.host / all, placed.disk / all};
}

Policy PolicyOf(const PublishedRun& run, const DecoderSpec& model) {
  Policy policy;
  policy.gbs = run.gbs;
  policy.num_microbatches = run.num_microbatches;
  policy.max_step_tokens = run.gbs * run.prompt;
  policy.dtype = DType::kBFloat16;  // float16 has as many bytes
  policy.weights = PlacedWeights(model, run.weights);
  policy.kv_cache = run.kv_cache;
  policy.activations = run.activations;
  policy.overlap = run.overlap;
  policy.attention_site =
      run.host_attention ? AttentionSite::kHost : AttentionSite::kDevice;
  if (run.compress_weights) policy.compress_weights = WeightFormat::kInt4;
  if (run.compress_kv) policy.compress_kv = WeightFormat::kInt4;
  policy.automatic_weights = policy.automatic_kv_cache =
      policy.automatic_activations = false;
  return policy;
}

std::vector<std::pair<std::string, double*>> FittedConstants::Members() {
  return {{"product_flops", &product_flops},
          {"host_attention_bytes", &host_attention_bytes},
          {"host_call_seconds", &host_call_seconds},
          {"dequantize_bytes", &dequantize_bytes},
          {"kv_in_bytes", &kv_in_bytes},
          {"kv_out_bytes", &kv_out_bytes},
          {"disk_read_bytes", &disk_read_bytes},
          {"paging_bytes", &paging_bytes}};
}

MachineProfile PaperMachine(absl::string_view hardware,
                            const FittedConstants& constants) {
  const bool t4 = hardware == "t4";
  MachineProfile machine;
  machine.name = machine.device = std::string(hardware);
  machine.threads = t4 ? 16 : 56;
  // FlexGen's cost-model script: 0.8 of 15 GiB, 204 GiB and 1500 GiB.
  machine.device_memory_bytes =
      static_cast<uint64_t>(0.8 * (t4 ? 15 : 40) * kGiB);
  machine.host_memory_bytes =
      static_cast<uint64_t>(0.8 * (t4 ? 204 * kGiB : HostMemory(hardware)));
  machine.disk_bytes = t4 ? static_cast<uint64_t>(0.8 * 1500 * kGiB) : 0;

  ComputeProfile& device = machine.device_compute;
  // Data sheets: 320 GB/s, 1555 GB/s; kernels reach four fifths of that.
  device.memory_bytes_per_second = 0.8 * (t4 ? 320e9 : 1555e9);
  device.products = {{DType::kBFloat16, WeightFormat::kFull,
                      RateCurve::Constant(constants.product_flops)}};
  device.dequantize_bytes_per_second = constants.dequantize_bytes;
  device.quantize_bytes_per_second = constants.dequantize_bytes;
  // FlexGen's script, for T4: batched products at 79 Gflop/s when decoding, one
  // for each byte of K and V in float16; 9.97 Tflop/s over whole squares of
  // positions in prefill, of which half is attended. Others by their memory.
  const double faster = device.memory_bytes_per_second / (0.8 * 320e9);
  const double decode = 0.079e12 * faster;
  const RateCurve prefill = RateCurve::Constant(9.97e12 / 2 * faster);
  // 4 bits are made into float16 first: 4.5 bits for 16.
  constexpr double kInt4 = 4.5 / 16;
  device.attention = {
      {KvFormat::kBFloat16, RateCurve::Constant(decode), prefill},
      {KvFormat::kInt4,
       RateCurve::Constant(kInt4 /
                           (1 / decode + 1 / constants.dequantize_bytes)),
       prefill}};

  ComputeProfile& host = machine.host;
  host.memory_bytes_per_second = constants.host_attention_bytes;
  host.products = device.products;
  // On the host 4 bits are read no faster, by positions. Prompts are never
  // attended there (CostOptions::prefill_on_device).
  host.attention = {
      {KvFormat::kBFloat16, RateCurve::Constant(constants.host_attention_bytes),
       prefill},
      {KvFormat::kInt4,
       RateCurve::Constant(kInt4 * constants.host_attention_bytes), prefill}};
  host.quantize_bytes_per_second = host.dequantize_bytes_per_second = 1e9;
  host.layer_seconds = constants.host_call_seconds;
  host.share_by_threads = device.share_by_threads = RateCurve::Constant(1);

  // PCIe 3 x16: 15.75 GB/s on the wire, of which copies of pinned memory get
  // 12.5; the way back 4.82 GiB/s in FlexGen's script. PCIe 4 has twice as
  // much.
  const double lanes = t4 ? 1 : 2;
  machine.host_to_device_bytes_per_second = 12.5e9 * lanes;
  machine.device_to_host_bytes_per_second = 4.82 * kGiB * lanes;
  machine.disk.read_bytes_per_second = constants.disk_read_bytes;
  // FlexGen, section 6.
  machine.disk.write_bytes_per_second = 1e9;
  return machine;
}

CostOptions FlexGenOptions(const MachineProfile& machine,
                           const FittedConstants& constants) {
  return {.dequantize_per_micro_batch = true,
          .prefill_on_device = true,
          .page_positions = 1,
          .activation_bytes = 2,
          .kv_in_share =
              constants.kv_in_bytes / machine.host_to_device_bytes_per_second,
          .kv_out_share =
              constants.kv_out_bytes / machine.device_to_host_bytes_per_second,
          .activation_turns = 2,
          .seconds = BarrierSeconds};
}

namespace {

// Weights in host memory. Where they are pinned, PyTorch's allocator
// (since 2.0) rounds each tensor up to a power of two; FlexGen's own runs are
// older.
double WeightsOnHost(const PublishedRun& run, const DecoderSpec& model,
                     double share) {
  const bool rounds = run.hardware == "a100";
  const auto bytes = [&](double elements) {
    const double exact = elements * (run.compress_weights ? 4.5 / 8 : 2);
    return rounds ? std::exp2(std::ceil(std::log2(exact))) : exact;
  };
  const double hidden = model.hidden_size, inner = model.intermediate_size;
  const double layer = 4 * bytes(hidden * hidden) +
                       (model.gated_mlp ? 3 : 2) * bytes(hidden * inner);
  return model.num_layers * layer * share;
}

// KV of all sequences in host memory, of one position.
double HostKvBytes(const PublishedRun& run, const DecoderSpec& model) {
  const KvFormat format =
      run.compress_kv ? KvFormat::kInt4 : KvFormat::kBFloat16;
  return KvBytesPerPosition(model, format) * model.num_layers * run.block() *
         run.kv_cache.host;
}

// Seconds of decoding in which memory is paged: in each step, all of the KV
// cache that has no room beside the weights comes from swap. LM-Offload
// reports up to 326 GB for runs on a machine of 240 + 40.
double PagingSeconds(const PublishedRun& run, const DecoderSpec& model,
                     double weights, const FittedConstants& constants) {
  const double room = HostMemory(run.hardware) - weights;
  const double position = HostKvBytes(run, model);
  double paged = 0;
  for (int32_t i = 1; i < run.output; ++i) {
    paged += std::max(0.0, position * (run.prompt + i) - room);
  }
  return paged / constants.paging_bytes;
}

}  // namespace

absl::StatusOr<PaperPrediction> PredictRun(const PublishedRun& run,
                                           const FittedConstants& constants) {
  SLUICE_ASSIGN_OR_RETURN(const DecoderSpec model, PaperModel(run.model));
  const MachineProfile machine = PaperMachine(run.hardware, constants);
  StageCase stage;
  stage.model = &model;
  stage.machine = &machine;
  stage.layers = {0, model.num_layers};
  stage.longest = run.prompt + run.output;
  stage.options = FlexGenOptions(machine, constants);
  stage.policy = PolicyOf(run, model);
  const Policy& policy = stage.policy;
  const Fractions fractions = FractionsOf(policy);
  stage.may_use = SupportOf(fractions);

  const Workload workload = {{{run.prompt, run.output, run.block()}}};
  PaperPrediction prediction;
  for (const StepShape& step :
       BlockSteps(workload,
                  {.gbs = run.gbs, .num_microbatches = run.num_microbatches})) {
    const double seconds = step.count * StepSeconds(stage, step, fractions);
    (step.prefill_rows > 0 ? prediction.prefill_seconds
                           : prediction.decode_seconds) += seconds;
    const ResourceForms forms = StepCost(stage, step);
    for (int r = 0; r < kNumResources; ++r) {
      prediction.busy[r] += step.count * forms[r].At(fractions);
    }
  }
  prediction.paging_seconds = PagingSeconds(
      run, model, WeightsOnHost(run, model, policy.weights.host), constants);
  prediction.decode_seconds += prediction.paging_seconds;
  prediction.tokens_per_second =
      workload.output_tokens() /
      (prediction.prefill_seconds + prediction.decode_seconds);
  prediction.binding = static_cast<Resource>(
      std::max_element(prediction.busy.begin(), prediction.busy.end()) -
      prediction.busy.begin());
  return prediction;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

double ErrorOf(const PublishedRun& run, const PaperPrediction& prediction) {
  return prediction.tokens_per_second / run.tokens_per_second - 1;
}

}  // namespace sluice
