#include "scheduler/cost/cost_model.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>

#include "absl/functional/function_ref.h"
#include "common/blocks.h"
#include "runtime/placement/buffer_sizes.h"
#include "scheduler/cost/model_sizes.h"

// Sources. "FlexGen A.3": the cost model in the appendix of "FlexGen:
// High-Throughput Generative Inference of Large Language Models with a Single
// GPU" (2023). "LM-Offload 3": section 3 of "LM-Offload: Performance
// Model-Guided Generative Inference of Large Language Models with Parallelism
// Control" (2024). Where neither is named, the runtime is the source.

namespace sluice {
namespace {

// Returns `times` the sum of some fractions of a kind.
LinearForm Share(Kind kind, std::initializer_list<TierIndex> tiers,
                 double times) {
  LinearForm form;
  for (const TierIndex tier : tiers) form.slope[3 * kind + tier] = times;
  return form;
}

LinearForm Constant(double value) { return {.constant = value}; }

// Returns `amount` / `rate`; 0 at a rate of 0, of what the machine does not
// have: the capacities keep the fractions there at 0.
double Seconds(double amount, double rate) {
  return rate > 0 ? amount / rate : 0;
}

double At(const RateCurve& curve, double x) {
  return curve.empty() ? 0 : curve.At(std::max(x, 1e-3));
}

const AttentionRate* NearestAttention(const ComputeProfile& compute,
                                      KvFormat format) {
  if (const AttentionRate* exact = compute.Attention(format)) return exact;
  if (format == KvFormat::kFloat16) {
    return NearestAttention(compute, KvFormat::kBFloat16);
  }
  return compute.attention.empty() ? nullptr : &compute.attention.front();
}

// Returns the rate of random reads of so many bytes, as deep as was measured:
// that of the largest measured size up to it.
double ReadRate(const DiskProfile& disk, double request_bytes) {
  const DiskRate* best = nullptr;
  for (const DiskRate& rate : disk.rates) {
    if (static_cast<double>(rate.request_bytes) > request_bytes) continue;
    if (best == nullptr || rate.request_bytes > best->request_bytes ||
        (rate.request_bytes == best->request_bytes &&
         rate.read_bytes_per_second > best->read_bytes_per_second)) {
      best = &rate;
    }
  }
  return best != nullptr && best->read_bytes_per_second > 0
             ? best->read_bytes_per_second
             : disk.read_bytes_per_second;
}

// Returns the seconds of the smallest request when nothing else is asked for; 0
// if that was not measured.
double RequestSeconds(const DiskProfile& disk, double DiskRate::*bytes_per_s) {
  const DiskRate* min = nullptr;
  for (const DiskRate& rate : disk.rates) {
    if (rate.depth != 1 || !(rate.*bytes_per_s > 0)) continue;
    if (min == nullptr || rate.request_bytes < min->request_bytes) {
      min = &rate;
    }
  }
  return min == nullptr
             ? 0
             : static_cast<double>(min->request_bytes) / (min->*bytes_per_s);
}

class StepCoster {
 public:
  StepCoster(const StageCase& stage, const StepShape& step)
      : stage_(stage),
        model_(*stage.model),
        machine_(*stage.machine),
        policy_(stage.policy),
        options_(stage.options),
        step_(step),
        ranks_(stage.Ranks()),
        sizes_(ranks_->lead()),
        work_(ranks_->work),
        layers_(stage.layers.size()),
        rows_(step.prefill_rows + step.decode_rows),
        batches_(std::max(step.micro_batches, 1.0)),
        has_device_(machine_.has_device()),
        first_(stage.layers.begin == 0),
        last_(stage.layers.end == model_.num_layers) {
    // A device's kernels do not run on the policy's threads.
    compute_share_ = has_device_ ? 1 : ThreadShare();
    host_share_ = ThreadShare();
  }

  StepParts Parts() {
    Weights();
    Kv();
    Activations();
    Gemms();
    Attention();
    Head();
    Others();
    Exchanges();
    Link();
    parts_.layers = layers_;
    parts_.micro_batches = batches_;
    parts_.first_half = FirstHalf();
    return parts_;
  }

 private:
  // The share of a layer's weights that its first half has.
  double FirstHalf() const {
    return work_.attention_elements / work_.layer_elements();
  }

  // The share that the policy's threads reach of a rate measured with all.
  double ThreadShare() const {
    const RateCurve& curve = machine_.host.share_by_threads;
    if (policy_.compute_threads <= 0 || curve.empty()) return 1;
    const double all = curve.At(std::max(1, machine_.rank_threads()));
    const double share =
        curve.At(std::max(1, policy_.compute_threads / machine_.ranks));
    return all > 0 && share > 0 ? share / all : 1;
  }

  // Bytes of all ranks, that one disk has, and the most of a rank's, that its
  // wires have.
  struct RankBytes {
    double all = 0, most = 0;
  };
  RankBytes OfRanks(absl::FunctionRef<double(const StageSizes&)> bytes) const {
    RankBytes of;
    for (const StageRanks::Kind& kind : ranks_->kinds) {
      const double one = bytes(kind.sizes);
      of.all += kind.count * one;
      of.most = std::max(of.most, one);
    }
    return of;
  }

  static void Add(ResourceForms* part, Resource resource, LinearForm form) {
    (*part)[static_cast<int>(resource)].Add(form);
  }
  void Compute(ResourceForms* part, double seconds) {
    Add(part, Resource::kDeviceCompute, Constant(seconds / compute_share_));
  }

  // A read takes the cores some time, too: the published models leave it out.
  void DiskRead(ResourceForms* part, const LinearForm& seconds) {
    Add(part, Resource::kDiskRead, seconds);
    const DiskProfile& disk = machine_.disk;
    (*part)[static_cast<int>(has_device_ ? Resource::kHostCompute
                                         : Resource::kDeviceCompute)]
        .Add(seconds,
             disk.read_bytes_per_second * disk.compute_seconds_per_byte);
  }

  // FlexGen A.3, dtoc and ctog: read once for all micro-batches, or row by row
  // once for each. The LM head, left out there, is added.
  void Weights() {
    const double passes =
        policy_.schedule == Schedule::kRowByRow ? batches_ : 1;
    const RankBytes moved = OfRanks([&](const StageSizes& sizes) {
      const auto layers = static_cast<double>(sizes.layer_bytes);
      const auto experts = static_cast<double>(sizes.expert_bytes);
      const double head = static_cast<double>(sizes.streamable) - layers;
      return (layers - experts * (1 - TakenExperts())) * passes +
             head * HeadReads();
    });
    DiskRead(&parts_.weights,
             Share(kWeights, {kOnDisk},
                   Seconds(moved.all, machine_.disk.read_bytes_per_second)));
    if (!has_device_) return;
    Add(&parts_.weights, Resource::kHostToDevice,
        Share(kWeights, {kOnHost, kOnDisk},
              Seconds(moved.most, machine_.host_to_device_bytes_per_second)));
  }

  // FlexGen A.3, but KV that is attended on the host never crosses the bus
  // (there, prefill's always does), and what is read and written are pages.
  void Kv() {
    const double page = options_.page_positions;
    const KvFormat format = KvFormatOf(policy_);
    const RankBytes position = OfRanks([&](const StageSizes& sizes) {
      return page > 1 ? static_cast<double>(sizes.kv.layer_page_bytes()) /
                            kPageTokens
                      : KvBytesPerPosition(model_, format) *
                            sizes.kv.num_kv_heads / model_.num_kv_heads;
    });
    const double spare = (page - 1) / 2;  // of a page begun, on average
    const double positions_read = OverLayers([&](double window) {
      return std::min(step_.read_positions,
                      (step_.decode_rows + step_.prefill_chunks) * window) +
             step_.decode_rows * spare;
    });
    const double of_prompts =
        (step_.prefill_rows + step_.prefill_chunks * spare) * layers_;
    const double positions_written =
        of_prompts + step_.decode_rows * page * layers_;
    const DiskProfile& disk = machine_.disk;
    DiskRead(&parts_.kv, Share(kKv, {kOnDisk},
                               Seconds(positions_read * position.all,
                                       disk.read_bytes_per_second)));
    Add(&parts_.kv, Resource::kDiskWrite,
        Share(kKv, {kOnDisk},
              Seconds(positions_written * position.all,
                      disk.write_bytes_per_second)));
    const double read = positions_read * position.most;
    const double prompts = of_prompts * position.most;
    const double written = positions_written * position.most;
    if (!has_device_) return;
    const double in = machine_.host_to_device_bytes_per_second;
    const double out = machine_.device_to_host_bytes_per_second;
    // KV of host memory, and KV on its way from or to the disk.
    const auto to_device = [&](double bytes, double share) {
      Add(&parts_.kv, Resource::kHostToDevice,
          Share(kKv, {kOnHost}, Seconds(bytes, in * share)));
      Add(&parts_.kv, Resource::kHostToDevice,
          Share(kKv, {kOnDisk}, Seconds(bytes, in)));
    };
    const auto from_device = [&](double bytes, double share) {
      Add(&parts_.kv, Resource::kDeviceToHost,
          Share(kKv, {kOnHost}, Seconds(bytes, out * share)));
      Add(&parts_.kv, Resource::kDeviceToHost,
          Share(kKv, {kOnDisk}, Seconds(bytes, out)));
    };
    if (policy_.attention_site == AttentionSite::kDevice) {
      to_device(read, options_.kv_in_share);
      from_device(written, options_.kv_out_share);
      return;
    }
    // The host gets q, k and v, and gives attention's result back.
    double rows = rows_;
    if (options_.prefill_on_device) {
      rows = step_.decode_rows;
      from_device(prompts, options_.kv_out_share);
    }
    const double qkv =
        (work_.query_width + 2 * work_.kv_width) * options_.activation_bytes;
    const double result =
        work_.query_width * (policy_.dtype == DType::kFloat32 ? 4 : 2);
    from_device(rows * qkv * layers_, 1);
    to_device(rows * result * layers_, 1);
  }

  // FlexGen A.3, but nothing moves while there is but one micro-batch, or row
  // by row: then a micro-batch goes through all layers in one turn.
  void Activations() {
    const double bytes = rows_ * model_.hidden_size * options_.activation_bytes;
    const double several = std::min(1.0, batches_ - 1);
    const double moved =
        policy_.schedule == Schedule::kRowByRow
            ? 0
            : several * options_.activation_turns * layers_ * bytes;
    const DiskProfile& disk = machine_.disk;
    // Each rank has all of the stream.
    const double of_ranks = moved * machine_.ranks;
    DiskRead(&parts_.activations,
             Share(kActivations, {kOnDisk},
                   Seconds(of_ranks, disk.read_bytes_per_second)));
    Add(&parts_.activations, Resource::kDiskWrite,
        Share(kActivations, {kOnDisk},
              Seconds(of_ranks, disk.write_bytes_per_second)));
    // Each stream is asked for a turn ahead and waited for: what a request
    // takes beside its bytes counts, too.
    const double requests =
        moved > 0 ? several * options_.activation_turns * layers_ * batches_
                  : 0;
    Add(&parts_.activations, Resource::kDiskRead,
        Share(
            kActivations, {kOnDisk},
            requests * RequestSeconds(disk, &DiskRate::read_bytes_per_second)));
    Add(&parts_.activations, Resource::kDiskWrite,
        Share(kActivations, {kOnDisk},
              requests *
                  RequestSeconds(disk, &DiskRate::write_bytes_per_second)));
    if (!has_device_) return;
    const double in = machine_.host_to_device_bytes_per_second;
    const double out = machine_.device_to_host_bytes_per_second;
    Add(&parts_.activations, Resource::kHostToDevice,
        Share(kActivations, {kOnHost, kOnDisk}, Seconds(moved, in)));
    Add(&parts_.activations, Resource::kDeviceToHost,
        Share(kActivations, {kOnHost, kOnDisk}, Seconds(moved, out)));
    // Activations come to the stage and leave it through host memory.
    Add(&parts_.activations, Resource::kHostToDevice,
        Constant(Seconds(bytes, in)));
    if (!last_) {
      Add(&parts_.activations, Resource::kDeviceToHost,
          Constant(Seconds(bytes, out)));
    }
  }

  // Quantized weights are dequantized before the GEMMs: once for all
  // micro-batches, or for each; a single micro-batch's GEMMs do it.
  bool Dequantizes() const {
    if (!sizes_.layouts.quantized() || model_.has_mixtures()) return false;
    return policy_.num_microbatches > 1 ||
           options_.dequantize_per_micro_batch ||
           std::any_of(
               ranks_->layers.begin(), ranks_->layers.end(),
               [](const SharedRates& some) { return !some.rates.measured(); });
  }

  // Rows pass through a mixture's experts together, but row by row: then those
  // of each micro-batch do.
  double ExpertPasses() const {
    return policy_.schedule == Schedule::kRowByRow && layers_ > 1 ? batches_
                                                                  : 1;
  }
  // The share of the experts that a row takes.
  double ExpertShare() const {
    const MixtureSpec& mixture = model_.mixture;
    return static_cast<double>(mixture.experts_per_token) / mixture.experts;
  }
  // The share that some row of a pass takes, if they choose evenly: only those
  // are read.
  double TakenExperts() const {
    if (work_.expert_elements == 0) return 1;
    return 1 - std::pow(1 - ExpertShare(), rows_ / ExpertPasses());
  }
  double ExpertSeconds() const {
    if (work_.expert_elements == 0 || rows_ == 0) return 0;
    const double taken = TakenExperts();
    double seconds = 0;
    for (const auto& [part, rates] : ranks_->experts) {
      seconds += rates.Multiply(part * taken * work_.expert_elements,
                                rows_ / ExpertPasses() * ExpertShare() / taken,
                                ExpertPasses());
    }
    return seconds;
  }

  void Gemms() {
    const bool dequantizes = Dequantizes();
    const bool each = options_.dequantize_per_micro_batch ||
                      policy_.num_microbatches == 1 ||
                      policy_.schedule == Schedule::kRowByRow;
    const double rows = rows_ / batches_;
    double seconds = layers_ * ExpertSeconds();
    for (const auto& [share, rates] : ranks_->layers) {
      const double elements =
          share * (work_.attention_elements + work_.mlp_elements);
      const ProductRates& multiplied = dequantizes ? ranks_->full : rates;
      seconds += layers_ * multiplied.Multiply(elements, rows, batches_);
      if (dequantizes) {
        seconds += (each ? batches_ : 1) * rates.Decode(layers_ * elements);
      }
    }
    Compute(&parts_.attention, FirstHalf() * seconds);
    Compute(&parts_.rest, (1 - FirstHalf()) * seconds);
  }

  // Attention of prompts by flops, of decoding rows by the bytes of K and V
  // that it reads (FlexGen A.3, att, counts flops for both; decoding is bound
  // by memory). Sparse: all of K, a share of V (FlexGen, section 5). Of
  // quantized KV, the rates are those of attention in its format, which
  // includes making codes of new K and V (LM-Offload 3, eqs. 5 to 7).
  struct AttentionSeconds {
    double prefill = 0, decode = 0;
  };
  AttentionSeconds AttentionOn(const ComputeProfile& compute) const {
    const KvFormat format = KvFormatOf(policy_);
    const AttentionRate* rate = NearestAttention(compute, format);
    AttentionSeconds seconds;
    if (rate == nullptr) return seconds;
    if (step_.prefill_rows > 0) {
      seconds.prefill = OverLayers([&](double window) {
        const double pairs =
            std::min(step_.prefill_pairs, step_.prefill_rows * window);
        return Seconds(
            4 * work_.query_width * pairs,
            At(rate->prefill_flops_by_context, pairs / step_.prefill_rows));
      });
    }
    if (step_.decode_rows > 0) {
      const double heads =
          work_.kv_width / static_cast<double>(KvWidth(model_));
      seconds.decode = OverLayers([&](double window) {
        const double positions =
            std::min(step_.decode_positions, step_.decode_rows * window);
        const double bytes = KvBytesPerPosition(model_, format) * heads *
                             positions * (1 + policy_.sparsity) / 2;
        return Seconds(bytes, At(rate->decode_bytes_by_context,
                                 positions / step_.decode_rows));
      });
    }
    return seconds;
  }

  // Sums over the stage's layers what `of_layer` gives for the most positions
  // that a row attends in one. Rows are taken to be at their average: of some
  // before the window's end and some behind it that is a little too much.
  double OverLayers(absl::FunctionRef<double(double window)> of_layer) const {
    const KvGroups& groups = sizes_.kv_groups;
    double sum = 0;
    if (const int32_t all = groups.sizes[KvGroup::kAll]; all > 0) {
      constexpr double kNoWindow = 1e15;
      sum += all * of_layer(kNoWindow);
    }
    if (groups.window > 0) {
      sum += groups.sizes[KvGroup::kWindow] * of_layer(groups.window);
    }
    return sum;
  }

  void Attention() {
    const AttentionSeconds here = AttentionOn(machine_.compute());
    if (!has_device_) {
      Compute(&parts_.attention, here.prefill + here.decode);
      return;
    }
    if (policy_.attention_site == AttentionSite::kDevice) {
      Compute(&parts_.attention, here.prefill + here.decode);
      return;
    }
    AttentionSeconds there = AttentionOn(machine_.host);
    double on_device = here.decode, on_host = there.decode;
    double calls = 0;  // of the host's attention
    if (options_.prefill_on_device) {
      Compute(&parts_.attention, here.prefill);
      if (step_.decode_rows > 0) calls = batches_ * layers_;
    } else {
      on_device += here.prefill;
      on_host += there.prefill;
      calls = batches_ * layers_;
    }
    Add(&parts_.attention, Resource::kDeviceCompute,
        Share(kKv, {kOnDevice}, on_device));
    Add(&parts_.attention, Resource::kHostCompute,
        Share(kKv, {kOnHost, kOnDisk},
              on_host / host_share_ + calls * machine_.host.layer_seconds));
  }

  // As many rows go through the head together as its input has room for.
  double HeadPasses() const {
    return std::ceil(step_.head_rows / static_cast<double>(sizes_.head_rows));
  }
  // The number of times that its weights are read: once for all passes, if the
  // head has one section.
  double HeadReads() const {
    return sizes_.layouts.head.size() > 1 ? HeadPasses()
                                          : std::min(1.0, HeadPasses());
  }

  // FlexGen A.3 has no LM head: rows of all micro-batches share its passes, and
  // tokens are sampled where their logits are (runtime/exec/stage_head.cc).
  // Rows whose logits a device must bring to the host, for penalties or
  // likeliest tokens, are as the others: what requests will ask for is not in a
  // workload.
  void Head() {
    if (!last_ || step_.head_rows <= 0) return;
    const double passes = HeadPasses();
    Compute(&parts_.rest,
            ranks_->head.Multiply(work_.head_elements, step_.head_rows / passes,
                                  passes));
    Compute(&parts_.rest, machine_.compute().logit_seconds * model_.vocab_size *
                              step_.head_rows);
  }

  void Others() {
    const ComputeProfile& compute = machine_.compute();
    Compute(&parts_.rest,
            compute.row_element_seconds * rows_ * model_.hidden_size * layers_);
    // Calls do not get faster with more threads.
    Add(&parts_.rest, Resource::kDeviceCompute,
        Constant(compute.layer_seconds * batches_ * layers_ +
                 machine_.step_seconds));
    // The embedding is looked up on disk if any weights are there, and the
    // sweep waits for its rows.
    if (first_ && stage_.MayUse(kWeights, kOnDisk) &&
        machine_.disk.read_bytes_per_second > 0 &&
        sizes_.embedding_on_disk < sizes_.embedding.bytes) {
      // Rows lie at multiples of their size: whole blocks, on average.
      const uint64_t row = sizes_.embedding.row_bytes;
      const auto read = static_cast<double>(row + kDiskBlockBytes -
                                            std::gcd(row, kDiskBlockBytes));
      const double seconds =
          Seconds(rows_ * read, ReadRate(machine_.disk, read));
      Add(&parts_.rest, Resource::kDiskRead, Constant(seconds));
      Add(&parts_.rest, Resource::kDeviceCompute, Constant(seconds));
    }
  }

  // Ranks wait for each other: no exchange overlaps with computing. The leading
  // one shares the stage's input, too, and gets all logits.
  void Exchanges() {
    if (machine_.ranks == 1) return;
    const ExchangeProfile& exchange = machine_.exchange;
    const double others = (machine_.ranks - 1.0) / machine_.ranks;
    double bytes =
        rows_ * (layers_ * work_.exchanged_bytes + 4.0 * model_.hidden_size);
    double exchanges =
        batches_ * (layers_ * work_.exchanges + 1) +
        layers_ * ExpertPasses() * TakenExperts() * work_.expert_exchanges;
    if (last_ && step_.head_rows > 0) {
      bytes += step_.head_rows * 4.0 * model_.vocab_size * others;
      exchanges += HeadPasses();
    }
    Add(&parts_.rest, Resource::kDeviceCompute,
        Constant(Seconds(bytes, exchange.bytes_per_second) +
                 exchanges * exchange.latency_seconds));
  }

  void Link() {
    const LinkProfile* link = machine_.Link("");
    if (last_ || link == nullptr) return;
    const double bytes = rows_ * model_.hidden_size *
                         (policy_.link_dtype == DType::kFloat32 ? 4 : 2);
    // Frames follow each other without waiting, as many in a round trip as
    // there are credits.
    const double round_trips = batches_ / LinkFrames(policy_);
    Add(&parts_.link, Resource::kLink,
        Constant(std::max(Seconds(bytes, link->bytes_per_second),
                          2 * link->latency_seconds * round_trips)));
  }

  const StageCase& stage_;
  const DecoderSpec& model_;
  const MachineProfile& machine_;
  const Policy& policy_;
  const CostOptions& options_;
  const StepShape& step_;
  const std::shared_ptr<const StageRanks> ranks_;
  const StageSizes& sizes_;  // of the leading rank
  const RankWork& work_;     // of the rank that has most
  const double layers_;
  const double rows_;
  const double batches_;  // micro-batches with rows
  const bool has_device_, first_, last_;
  double compute_share_ = 1, host_share_ = 1;
  StepParts parts_;
};

}  // namespace

absl::string_view ResourceName(Resource resource) {
  switch (resource) {
    case Resource::kDiskRead:
      return "disk read";
    case Resource::kDiskWrite:
      return "disk write";
    case Resource::kHostToDevice:
      return "host to device";
    case Resource::kDeviceToHost:
      return "device to host";
    case Resource::kDeviceCompute:
      return "compute";
    case Resource::kHostCompute:
      return "host compute";
    case Resource::kLink:
      return "link";
  }
  return "";
}

Fractions FractionsOf(const Policy& policy) {
  const TierFractions& w = policy.weights;
  const TierFractions& c = policy.kv_cache;
  const TierFractions& h = policy.activations;
  return {w.device, w.host,   w.disk, c.device, c.host,
          c.disk,   h.device, h.host, h.disk};
}

void SetFractions(const Fractions& fractions, Policy* policy) {
  const auto tiers = [&](int kind) {
    return TierFractions{fractions[3 * kind], fractions[3 * kind + 1],
                         fractions[3 * kind + 2]};
  };
  policy->weights = tiers(kWeights);
  policy->kv_cache = tiers(kKv);
  policy->activations = tiers(kActivations);
  policy->automatic_weights = false;
  policy->automatic_kv_cache = false;
  policy->automatic_activations = false;
}

std::array<bool, kNumFractions> SupportOf(const Fractions& fractions) {
  std::array<bool, kNumFractions> support = {};
  for (int i = 0; i < kNumFractions; ++i) support[i] = fractions[i] > 0;
  return support;
}

double LinearForm::At(const Fractions& fractions) const {
  double value = constant;
  for (int i = 0; i < kNumFractions; ++i) value += slope[i] * fractions[i];
  return value;
}

void LinearForm::Add(const LinearForm& other, double times) {
  constant += times * other.constant;
  for (int i = 0; i < kNumFractions; ++i) slope[i] += times * other.slope[i];
}

ResourceForms StepParts::Total() const {
  ResourceForms total;
  for (int r = 0; r < kNumResources; ++r) {
    for (const ResourceForms* part :
         {&weights, &kv, &activations, &attention, &rest, &link}) {
      total[r].Add((*part)[r]);
    }
  }
  return total;
}

ResourceForms StepCost(const StageCase& stage, const StepShape& step) {
  return StepCoster(stage, step).Parts().Total();
}

double StepSeconds(const StageCase& stage, const StepShape& step,
                   const Fractions& fractions) {
  return PriceStep(stage, step, fractions, 1, nullptr);
}

double PriceStep(const StageCase& stage, const StepShape& step,
                 const Fractions& fractions, double times,
                 ResourceSeconds* busy) {
  const StepParts parts = StepCoster(stage, step).Parts();
  const CostOptions& options = stage.options;
  double longest = 0, sum = 0;
  const ResourceForms total = parts.Total();
  for (int r = 0; r < kNumResources; ++r) {
    const double seconds = total[r].At(fractions);
    longest = std::max(longest, seconds);
    sum += seconds;
    if (busy != nullptr) (*busy)[r] += times * seconds;
  }
  if (stage.policy.overlap && options.seconds != nullptr) {
    return options.seconds(parts, fractions);
  }
  return stage.policy.overlap && options.overlap == Overlap::kFull ? longest
                                                                   : sum;
}

}  // namespace sluice
