#include "runtime/profile/attention_probe.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "common/status_macros.h"
#include "runtime/kernels/backend_parts.h"
#include "runtime/kernels/cpu/attention.h"
#include "runtime/kv/batch_view.h"
#include "runtime/kv/kv_arena.h"
#include "runtime/memory/compute_pool.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/profile/measure.h"
#include "runtime/profile/probe_model.h"

namespace sluice {
namespace {

// Bytes of K and V that exceed all caches.
constexpr uint64_t kBeyondCache = uint64_t{96} << 20;
constexpr int32_t kHidden = 2048;
constexpr int32_t kHeadDim = 128;
// A KV head has four query heads.
constexpr int32_t kContexts[] = {32, 128, 512, 2048};
constexpr int32_t kPrompts[] = {32, 128, 512, 2048};
// Calls in flight before a device is waited for.
constexpr int kInFlight = 8;

// One layer's attention on its own.
class AttentionProbe {
 public:
  static absl::StatusOr<std::unique_ptr<AttentionProbe>> Create(
      const AttentionProbeOptions& options) {
    auto self = std::make_unique<AttentionProbe>();
    self->device_ = options.device;
    self->max_rows_ = options.max_rows;
    // The layer is in the middle: nothing is embedded, and there is no head.
    self->spec_ = ProbeModel(3, kHidden, kHeadDim, kHeadDim, 64);
    BackendOptions backend;
    backend.layers = {1, 2};
    backend.dtype = options.format == KvFormat::kFloat32 ? DType::kFloat32
                                                         : DType::kBFloat16;
    backend.kv_format = options.format;
    backend.max_rows = options.max_rows;
    backend.max_model_len = kContexts[std::size(kContexts) - 1] + 1;
    backend.threads = options.threads;
    backend.cores = options.cores;
    backend.budget = options.budget;
    backend.device = options.device;
    absl::StatusOr<BackendParts> made =
        CreateBackend(options.backend, self->spec_, backend);
    if (absl::IsUnimplemented(made.status())) {
      // Pages do not depend on the compute dtype.
      backend.dtype = DType::kFloat32;
      made = CreateBackend(options.backend, self->spec_, backend);
    }
    SLUICE_RETURN_IF_ERROR(made.status());
    self->parts_ = *std::move(made);
    const KvLayout& layout = self->parts_.kv_layout;
    const MemoryBudget& memory =
        options.device == nullptr ? *options.budget : *options.device_budget;
    const uint64_t room = std::min(kBeyondCache, memory.free_bytes() / 2);
    const int64_t min_pages = 2 * options.max_rows / kPageTokens;
    const auto pages = std::max<int64_t>(
        min_pages, static_cast<int64_t>(room / layout.page_bytes()));
    if (options.device == nullptr) {
      SLUICE_ASSIGN_OR_RETURN(self->kv_,
                              KvArena::Create(layout, pages, options.budget));
    } else {
      SLUICE_ASSIGN_OR_RETURN(self->kv_,
                              KvArena::CreateOn(options.device, layout, pages));
    }
    SLUICE_RETURN_IF_ERROR(self->Fill());
    return self;
  }

  // Float32 K and V of a position.
  size_t position_bytes() const {
    return sizeof(float) * 2 * static_cast<size_t>(spec_.num_kv_heads) *
           static_cast<size_t>(spec_.head_dim);
  }
  // Measures positions per second of sequences that have one each.
  absl::StatusOr<double> FirstPositions(double seconds,
                                        const std::atomic<bool>* cancelled) {
    constexpr int32_t kContext = 1;
    SLUICE_ASSIGN_OR_RETURN(const double bytes,
                            DecodeBytes(kContext, seconds, cancelled));
    return bytes * kPageTokens /
           static_cast<double>(parts_.kv_layout.layer_page_bytes());
  }

  // Measures bytes of K and V per second of sequences with `context` positions,
  // the last of which is new.
  absl::StatusOr<double> DecodeBytes(int32_t context, double seconds,
                                     const std::atomic<bool>* cancelled) {
    const int32_t pages_each = PagesOf(context);
    const auto count = static_cast<int32_t>(
        std::min<int64_t>(max_rows_, kv_->num_pages() / pages_each));
    std::vector<SegmentView> segments;
    std::vector<std::vector<int32_t>> tables = Tables(count, pages_each);
    for (int32_t s = 0; s < count; ++s) {
      segments.push_back({.row = s,
                          .start = context - 1,
                          .num_tokens = 1,
                          .pages = tables[static_cast<size_t>(s)],
                          .kv = kv_->LayerBase(0)});
    }
    SLUICE_ASSIGN_OR_RETURN(const double once,
                            Time(count, segments, seconds, cancelled));
    const KvLayout& layout = parts_.kv_layout;
    return static_cast<double>(count) * context *
           static_cast<double>(layout.layer_page_bytes()) / kPageTokens / once;
  }

  // Measures flops per second of a step of whole prompts.
  absl::StatusOr<double> PrefillFlops(int32_t prompt, double seconds,
                                      const std::atomic<bool>* cancelled) {
    const int32_t count = max_rows_ / prompt;
    const int32_t pages_each = PagesOf(prompt);
    std::vector<SegmentView> segments;
    std::vector<std::vector<int32_t>> tables = Tables(count, pages_each);
    for (int32_t s = 0; s < count; ++s) {
      segments.push_back({.row = s * prompt,
                          .start = 0,
                          .num_tokens = prompt,
                          .pages = tables[static_cast<size_t>(s)],
                          .kv = kv_->LayerBase(0)});
    }
    SLUICE_ASSIGN_OR_RETURN(const double once,
                            Time(count * prompt, segments, seconds, cancelled));
    const double pairs = 0.5 * count * prompt * (prompt + 1.0);
    return 4 * pairs * spec_.num_heads * spec_.head_dim / once;
  }

 private:
  // Fills pages with random K and V: one is computed, the others are copies.
  absl::Status Fill() {
    const KvLayout& layout = parts_.kv_layout;
    std::vector<float> k(kPageTokens * kHeadDim), v(k.size());
    FillFloats(k.data(), k.size());
    FillFloats(v.data(), v.size());
    std::vector<std::byte> page_bytes(layout.layer_page_bytes());
    for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
      StoreKv(k.data(), kHeadDim, v.data(), kHeadDim, 0, kPageTokens, kHeadDim,
              layout.format, page_bytes.data() + layout.head_offset(head));
    }
    for (int64_t page = 0; page < kv_->num_pages(); ++page) {
      SLUICE_RETURN_IF_ERROR(Put(
          page_bytes,
          kv_->LayerBase(0) + static_cast<size_t>(page) * page_bytes.size()));
    }
    const Backend::AttentionRows rows = parts_.backend->attention_rows(0);
    std::vector<float> qkv(rows.qkv_bytes / sizeof(float) *
                           static_cast<size_t>(max_rows_));
    FillFloats(qkv.data(), qkv.size());
    return Put(std::as_bytes(std::span(qkv)), rows.qkv);
  }

  // Copies bytes to the memory where the backend computes.
  absl::Status Put(std::span<const std::byte> bytes, std::byte* to) {
    if (device_ == nullptr) {
      std::memcpy(to, bytes.data(), bytes.size());
      return absl::OkStatus();
    }
    IoCompletion done;
    done.Expect(1);
    device_->CopyIn({to, bytes.size()}, bytes, &done);
    return done.Wait();
  }

  static std::vector<std::vector<int32_t>> Tables(int32_t count,
                                                  int32_t pages_each) {
    std::vector<std::vector<int32_t>> tables(static_cast<size_t>(count));
    int32_t page = 0;
    for (std::vector<int32_t>& table : tables) {
      for (int32_t i = 0; i < pages_each; ++i) table.push_back(page++);
    }
    return tables;
  }

  absl::StatusOr<double> Time(int32_t rows,
                              std::span<const SegmentView> segments,
                              double seconds,
                              const std::atomic<bool>* cancelled) {
    const BatchView batch = {.rows = rows, .segments = segments};
    const int calls = device_ == nullptr ? 1 : kInFlight;
    SLUICE_ASSIGN_OR_RETURN(
        const double all,
        TimeCalls(seconds, 2, cancelled, [&]() -> absl::Status {
          for (int i = 0; i < calls; ++i) {
            SLUICE_RETURN_IF_ERROR(parts_.backend->Attend(
                1, batch, 0, static_cast<int32_t>(segments.size())));
          }
          return parts_.backend->Finish();
        }));
    return all / calls;
  }

  DecoderSpec spec_;
  int32_t max_rows_ = 0;
  Device* device_ = nullptr;
  BackendParts parts_;
  std::unique_ptr<KvArena> kv_;
};

}  // namespace

absl::StatusOr<AttentionRate> MeasureAttention(
    const AttentionProbeOptions& options, double seconds,
    const std::atomic<bool>* cancelled) {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<AttentionProbe> probe,
                          AttentionProbe::Create(options));
  const double each =
      seconds / static_cast<double>(std::size(kContexts) + std::size(kPrompts));
  AttentionRate rate;
  rate.format = options.format;
  std::vector<RateCurve::Point> decode, prefill;
  for (const int32_t context : kContexts) {
    if (context > options.max_rows) break;
    SLUICE_ASSIGN_OR_RETURN(const double bytes,
                            probe->DecodeBytes(context, each, cancelled));
    decode.push_back({static_cast<double>(context), bytes});
  }
  for (const int32_t prompt : kPrompts) {
    if (prompt > options.max_rows) break;
    SLUICE_ASSIGN_OR_RETURN(const double flops,
                            probe->PrefillFlops(prompt, each, cancelled));
    prefill.push_back({(prompt + 1) / 2.0, flops});
  }
  rate.decode_bytes_by_context = RateCurve(std::move(decode));
  rate.prefill_flops_by_context = RateCurve(std::move(prefill));
  return rate;
}

absl::StatusOr<double> MeasureKvQuantization(
    const AttentionProbeOptions& options, double seconds,
    const std::atomic<bool>* cancelled) {
  if (options.device != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<AttentionProbe> probe,
                            AttentionProbe::Create(options));
    SLUICE_ASSIGN_OR_RETURN(const double positions,
                            probe->FirstPositions(seconds, cancelled));
    return positions * static_cast<double>(probe->position_bytes());
  }
  constexpr int kPages = 512;
  const KvLayout layout{1, 1, kHeadDim, options.format};
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<KvArena> kv,
                          KvArena::Create(layout, kPages, options.budget));
  const size_t floats = size_t{kPageTokens} * kHeadDim;
  SLUICE_ASSIGN_OR_RETURN(
      const HostBuffer rows,
      HostBuffer::Create("profile", kPages * 2 * floats * sizeof(float),
                         options.budget));
  FillFloats(rows.as<float>(), kPages * 2 * floats);
  ComputePool pool(options.threads, options.cores);
  SLUICE_ASSIGN_OR_RETURN(
      const double once, TimeCalls(seconds, 3, cancelled, [&] {
        pool.ParallelFor(kPages, [&](int page, int) {
          const float* k =
              rows.as<float>() + static_cast<size_t>(page) * 2 * floats;
          StoreKv(k, kHeadDim, k + floats, kHeadDim, 0, kPageTokens, kHeadDim,
                  options.format,
                  kv->LayerBase(0) +
                      static_cast<size_t>(page) * layout.layer_page_bytes());
        });
        return absl::OkStatus();
      }));
  return static_cast<double>(kPages * 2 * floats * sizeof(float)) / once;
}

}  // namespace sluice
