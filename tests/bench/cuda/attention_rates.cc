#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "common/status_macros.h"
#include "runtime/kernels/cuda/attention/attention_inputs.h"
#include "tests/bench/cuda/device_rates.h"

namespace sluice::bench {
namespace {

struct Heads {
  int heads, kv_heads, head_dim;
};

AttentionShape ShapeOf(const Heads& heads, KvFormat format) {
  AttentionShape shape;
  shape.kv.num_layers = 1;
  shape.kv.num_kv_heads = heads.kv_heads;
  shape.kv.head_dim = heads.head_dim;
  shape.kv.format = format;
  shape.num_heads = heads.heads;
  shape.dtype = DType::kBFloat16;
  shape.scale = 1 / std::sqrt(static_cast<float>(heads.head_dim));
  return shape;
}

// Sequences of `tokens` new positions, the last of `context`, on pages that lie
// in no order.
struct World {
  Buffer kv, q, out, segments, pages, tile_begin;
  int tiles = 0;
  AttentionData data;
};

absl::StatusOr<World> MakeWorld(const AttentionShape& shape, int sequences,
                                int context, int tokens, int tile_rows) {
  World world;
  const int each = (context + kPageTokens - 1) / kPageTokens;
  std::vector<int32_t> pages(static_cast<size_t>(sequences) * each);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(7));
  std::vector<AttentionSegment> segments(sequences);
  std::vector<int32_t> tile_begin = {0};
  for (int s = 0; s < sequences; ++s) {
    segments[s].first_page = s * each;
    segments[s].row = s * tokens;
    segments[s].start = context - tokens;
    segments[s].num_tokens = tokens;
    const int rows = tokens * shape.group();
    tile_begin.push_back(tile_begin.back() +
                         (rows + tile_rows - 1) / tile_rows);
  }
  world.tiles = tile_begin.back();
  const size_t width = static_cast<size_t>(shape.num_heads) * shape.kv.head_dim;
  SLUICE_ASSIGN_OR_RETURN(
      world.kv, Buffer::Random(pages.size() * shape.kv.layer_page_bytes() +
                               KvLayout::kSlackBytes));
  SLUICE_ASSIGN_OR_RETURN(
      world.q, Buffer::Random(width * sequences * tokens * sizeof(float)));
  SLUICE_ASSIGN_OR_RETURN(world.out,
                          Buffer::Zeros(width * sequences * tokens * 2));
  SLUICE_ASSIGN_OR_RETURN(world.segments, Buffer::Of(segments));
  SLUICE_ASSIGN_OR_RETURN(world.pages, Buffer::Of(pages));
  SLUICE_ASSIGN_OR_RETURN(world.tile_begin, Buffer::Of(tile_begin));
  world.data.q = world.q.as<float>();
  world.data.q_stride = static_cast<int64_t>(width);
  world.data.out = world.out.data();
  world.data.kv = world.kv.data();
  world.data.segments = world.segments.as<AttentionSegment>();
  world.data.pages = world.pages.as<int32_t>();
  return world;
}

nlohmann::json Row(const Heads& heads, KvFormat format, int sequences,
                   int context) {
  return {{"heads", heads.heads},
          {"kv_heads", heads.kv_heads},
          {"head_dim", heads.head_dim},
          {"format", std::string(KvFormatName(format))},
          {"sequences", sequences},
          {"context", context}};
}

absl::StatusOr<nlohmann::json> Decode(const Bench& bench, const Heads& heads,
                                      KvFormat format, int context,
                                      size_t kv_bytes) {
  const AttentionShape shape = ShapeOf(heads, format);
  const int each = (context + kPageTokens - 1) / kPageTokens;
  const int sequences = static_cast<int>(
      std::max<size_t>(1, kv_bytes / (each * shape.kv.layer_page_bytes())));
  SLUICE_ASSIGN_OR_RETURN(const World world,
                          MakeWorld(shape, sequences, context, 1, 1));
  SLUICE_ASSIGN_OR_RETURN(const DecodePlan plan,
                          PlanDecode(shape, bench.device, sequences, context));
  SLUICE_ASSIGN_OR_RETURN(const Buffer workspace,
                          Buffer::Zeros(plan.workspace_bytes));
  SLUICE_ASSIGN_OR_RETURN(
      const Spread seconds, bench.Time([&](cudaStream_t stream) {
        return LaunchDecode(shape, bench.device, plan, world.data,
                            workspace.data(), stream);
      }));
  nlohmann::json row = Row(heads, format, sequences, context);
  row["splits"] = plan.splits;
  // K and V of all positions, once.
  AddRate(seconds, double{1} * sequences * each * shape.kv.layer_page_bytes(),
          "GB/s", &row);
  return row;
}

absl::StatusOr<nlohmann::json> Prefill(const Bench& bench, const Heads& heads,
                                       KvFormat format, int sequences,
                                       int tokens) {
  const AttentionShape shape = ShapeOf(heads, format);
  SLUICE_ASSIGN_OR_RETURN(const PrefillPlan plan,
                          PlanPrefill(shape, bench.device));
  SLUICE_ASSIGN_OR_RETURN(const World world, MakeWorld(shape, sequences, tokens,
                                                       tokens, plan.tile_rows));
  SLUICE_ASSIGN_OR_RETURN(
      const Spread seconds, bench.Time([&](cudaStream_t stream) {
        return LaunchPrefill(shape, bench.device, plan, world.data, sequences,
                             world.tile_begin.as<int32_t>(), world.tiles,
                             stream);
      }));
  nlohmann::json row = Row(heads, format, sequences, tokens);
  // Two products of what is seen: half of the square.
  const double pairs = 0.5 * tokens * (tokens + 1.0);
  AddRate(seconds, 4 * pairs * heads.head_dim * heads.heads * sequences,
          "TFLOP/s", &row);
  if (bench.bf16_tflop_s > 0) {
    row["share_of_peak"] = row["tflop_s"].get<double>() / bench.bf16_tflop_s;
  }
  return row;
}

}  // namespace

absl::StatusOr<nlohmann::json> DecodeRates(const Bench& bench) {
  nlohmann::json rows = nlohmann::json::array();
  // This is far more than any cache holds.
  const size_t kv_bytes = bench.tiny ? 1 : size_t{1} << 30;
  const int context = bench.tiny ? 70 : 1024;
  // OPT-6.7B and 30B, Llama-3-8B and 70B; heads of 64, 80 and 96 elements.
  std::vector<Heads> shapes = {{56, 56, 128}, {32, 8, 128}, {64, 8, 128},
                               {32, 32, 64},  {32, 32, 80}, {32, 32, 96}};
  if (bench.tiny) shapes = {{4, 1, 64}, {2, 2, 128}};
  for (const Heads& heads : shapes) {
    SLUICE_ASSIGN_OR_RETURN(
        rows.emplace_back(),
        Decode(bench, heads, KvFormat::kBFloat16, context, kv_bytes));
  }
  const Heads common = shapes.size() > 2 ? shapes[1] : shapes[0];
  for (const KvFormat format : {KvFormat::kInt8, KvFormat::kInt4}) {
    SLUICE_ASSIGN_OR_RETURN(rows.emplace_back(),
                            Decode(bench, common, format, context, kv_bytes));
  }
  if (!bench.tiny) {
    // A few sequences with much behind them are split.
    SLUICE_ASSIGN_OR_RETURN(
        rows.emplace_back(),
        Decode(bench, common, KvFormat::kBFloat16, 32768, kv_bytes));
  }
  for (nlohmann::json& row : rows) {
    if (bench.memory_gb_s > 0) {
      row["share_of_spec"] = row["gb_s"].get<double>() / bench.memory_gb_s;
    }
  }
  return rows;
}

absl::StatusOr<nlohmann::json> PrefillRates(const Bench& bench) {
  nlohmann::json rows = nlohmann::json::array();
  if (bench.tiny) {
    SLUICE_ASSIGN_OR_RETURN(
        rows.emplace_back(),
        Prefill(bench, {4, 2, 64}, KvFormat::kBFloat16, 1, 48));
    return rows;
  }
  for (const Heads& heads : {Heads{56, 56, 128}, Heads{32, 8, 128},
                             Heads{32, 32, 64}, Heads{32, 32, 96}}) {
    for (const int tokens : {512, 1024, 4096}) {
      SLUICE_ASSIGN_OR_RETURN(
          rows.emplace_back(),
          Prefill(bench, heads, KvFormat::kBFloat16, 16384 / tokens, tokens));
    }
  }
  for (const KvFormat format : {KvFormat::kInt8, KvFormat::kInt4}) {
    SLUICE_ASSIGN_OR_RETURN(rows.emplace_back(),
                            Prefill(bench, {32, 8, 128}, format, 16, 1024));
  }
  return rows;
}

}  // namespace sluice::bench
