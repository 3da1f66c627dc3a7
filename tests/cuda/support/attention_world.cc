#include "tests/cuda/support/attention_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "common/float16.h"
#include "runtime/kernels/cpu/attention.h"
#include "runtime/kernels/cuda/attention/attention_inputs.h"
#include "tests/unit/kernels/attention_cache.h"

namespace sluice {
namespace {

int PagesFor(int positions) {
  return (positions + kPageTokens - 1) / kPageTokens;
}

// Fills an AttentionWorld's memory, before copies of it are made.
std::vector<std::byte> Fill(const AttentionWorld::Choice& choice,
                            std::vector<int32_t>* pages,
                            std::vector<AttentionSegment>* segments,
                            std::vector<float>* q) {
  const KvLayout& layout = choice.shape.kv;
  const int head_dim = layout.head_dim;
  std::mt19937 random(choice.seed);
  int num_pages = 0, row = 0;
  for (const auto& sequence : choice.sequences) {
    AttentionSegment segment;
    segment.first_page = num_pages;
    segment.row = row;
    segment.start = sequence.start;
    segment.num_tokens = sequence.num_tokens;
    segments->push_back(segment);
    row += sequence.num_tokens;
    num_pages += PagesFor(sequence.start + sequence.num_tokens);
  }
  pages->resize(num_pages);
  std::iota(pages->begin(), pages->end(), 0);
  std::shuffle(pages->begin(), pages->end(), random);
  std::vector<std::byte> memory(num_pages * layout.layer_page_bytes(),
                                std::byte{0xff});
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto randoms = [&](size_t n) {
    std::vector<float> x(n);
    for (float& value : x) value = uniform(random);
    return x;
  };
  for (const AttentionSegment& segment : *segments) {
    const int end = segment.start + segment.num_tokens;
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      for (int at = 0; at < end;) {
        const int count = std::min(end - at, kPageTokens);
        auto k = randoms(count * head_dim);
        auto v = randoms(count * head_dim);
        const int bad = choice.nan_position - at;
        if (bad >= 0 && bad < count) {
          (choice.nan_in_k ? k : v)[bad * head_dim + head_dim / 2] = NAN;
        }
        StoreKv(k.data(), head_dim, v.data(), head_dim, 0, count, head_dim,
                layout.format,
                memory.data() +
                    (*pages)[segment.first_page + at / kPageTokens] *
                        layout.layer_page_bytes() +
                    layout.head_offset(head));
        at += count;
      }
    }
  }
  const int width = choice.shape.num_heads + 2 * layout.num_kv_heads;
  *q = randoms(static_cast<size_t>(row) * width * head_dim);
  // A sum of head_dim products of uniform numbers has a deviation of
  // sqrt(head_dim) / 3.
  const float factor =
      choice.spread * 3 / std::sqrt(float(head_dim)) / choice.shape.scale;
  for (float& x : *q) x *= factor;
  return memory;
}

}  // namespace

AttentionWorld::AttentionWorld(const Choice& given)
    : choice(given),
      memory(Fill(choice, &pages, &host_segments, &q)),
      device_q_(q),
      device_memory_(memory) {
  q_stride = (choice.shape.num_heads + 2 * choice.shape.kv.num_kv_heads) *
             choice.shape.kv.head_dim;
  for (const Sequence& sequence : choice.sequences) {
    rows += sequence.num_tokens;
    const int context = sequence.start + sequence.num_tokens;
    max_context = std::max(max_context, choice.window > 0
                                            ? std::min(context, choice.window)
                                            : context);
  }
}

std::span<const int32_t> AttentionWorld::PagesOf(size_t sequence) const {
  const AttentionSegment& segment = host_segments[sequence];
  return std::span(pages).subspan(segment.first_page,
                                  PagesFor(segment.start + segment.num_tokens));
}

void AttentionWorld::Decode(const AttentionDevice& device,
                            const AttentionData& data, int sequences,
                            int longest, float sparsity) const {
  const AttentionShape& shape = choice.shape;
  if (sparsity == 1) {
    const auto plan = PlanDecode(shape, device, sequences, longest);
    ASSERT_TRUE(plan.ok()) << plan.status();
    DeviceArray<std::byte> workspace(plan->workspace_bytes);
    const absl::Status status =
        LaunchDecode(shape, device, *plan, data, workspace.data(), nullptr);
    ASSERT_TRUE(status.ok()) << status;
    return;
  }
  // The work space has room for all sequences but one, so that there is a
  // second round.
  const size_t each = 8 * shape.num_heads * ((longest + 3) / 4 * 4);
  const auto plan = PlanSparse(shape, device, sequences, longest, sparsity,
                               each * std::max(1, sequences - 1));
  ASSERT_TRUE(plan.ok()) << plan.status();
  DeviceArray<std::byte> workspace(plan->workspace_bytes);
  const absl::Status status =
      LaunchSparse(shape, device, *plan, data, workspace.data(), nullptr);
  ASSERT_TRUE(status.ok()) << status;
}

std::vector<float> AttentionWorld::OnDevice(const AttentionDevice& device,
                                            float sparsity) const {
  const AttentionShape& shape = choice.shape;
  const auto prefill_plan = PlanPrefill(shape, device);
  EXPECT_TRUE(prefill_plan.ok()) << prefill_plan.status();
  std::vector<SegmentView> views;
  for (size_t s = 0; s < host_segments.size(); ++s) {
    const AttentionSegment& segment = host_segments[s];
    views.push_back({segment.row, segment.start, segment.num_tokens, PagesOf(s),
                     device_memory_.data()});
  }
  AttentionInputs batch;
  const absl::Status status = FillAttentionInputs(
      {.rows = rows, .segments = views}, 0, static_cast<int32_t>(views.size()),
      shape.group(), choice.window, prefill_plan->tile_rows, &batch);
  EXPECT_TRUE(status.ok()) << status;
  const DeviceArray<int32_t> device_pages(batch.pages);
  const DeviceArray<AttentionSegment> decode(batch.decode);
  const DeviceArray<AttentionSegment> prefill(batch.prefill);
  const DeviceArray<int32_t> tile_begin(batch.tile_begin);
  const DeviceArray<std::byte> out(static_cast<size_t>(rows) * shape.num_heads *
                                   shape.kv.head_dim *
                                   (shape.dtype == DType::kFloat32 ? 4 : 2));
  AttentionData data = {device_q_.data(), q_stride,      out.data(),
                        batch.kv,         decode.data(), device_pages.data(),
                        choice.window,    choice.scale};
  if (!batch.decode.empty()) {
    Decode(device, data, static_cast<int>(batch.decode.size()),
           batch.max_context, sparsity);
  }
  data.segments = prefill.data();
  const absl::Status launched =
      LaunchPrefill(shape, device, *prefill_plan, data,
                    static_cast<int32_t>(batch.prefill.size()),
                    tile_begin.data(), batch.tile_begin.back(), nullptr);
  EXPECT_TRUE(launched.ok()) << launched;
  return Floats(out.Read());
}

std::vector<float> AttentionWorld::Floats(
    const std::vector<std::byte>& out) const {
  std::vector<float> floats(rows * choice.shape.num_heads *
                            choice.shape.kv.head_dim);
  for (size_t i = 0; i < floats.size(); ++i) {
    if (choice.shape.dtype == DType::kFloat32) {
      std::memcpy(&floats[i], out.data() + 4 * i, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, out.data() + 2 * i, 2);
      floats[i] = choice.shape.dtype == DType::kBFloat16 ? BFloat16ToFloat(bits)
                                                         : Float16ToFloat(bits);
    }
  }
  return floats;
}

// Returns what the model's description says of a head.
static float AlibiSlope(const AttentionShape& shape, int head) {
  DecoderSpec spec;
  spec.num_heads = shape.alibi_heads;
  if (shape.alibi_heads > 0) spec.positions = PositionKind::kAlibi;
  return spec.alibi_slope(shape.first_head + head);
}

// Returns what ALiBi adds to the score of a position.
static double AlibiBias(const AttentionShape& shape, float scale, int head,
                        int position, int end) {
  const float slope = AlibiSlope(shape, head);
  if (!shape.rounded_alibi) return slope * (position + 1 - end);
  const auto rounded = [](float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) &
                                0xFFFF0000U);
  };
  const auto bias = [&](int p) {
    return rounded(rounded(slope) * rounded(static_cast<float>(p)));
  };
  return static_cast<double>(scale) * (bias(position) - bias(end - 1));
}

std::vector<double> AttentionWorld::Definition(float sparsity) const {
  const AttentionShape& shape = choice.shape;
  const float scale = shape.scale * choice.scale;
  const KvLayout& layout = shape.kv;
  const int head_dim = layout.head_dim;
  std::vector<double> out(rows * shape.num_heads * head_dim);
  for (size_t s = 0; s < host_segments.size(); ++s) {
    const AttentionSegment& segment = host_segments[s];
    const auto table = PagesOf(s);
    for (int kv_head = 0; kv_head < layout.num_kv_heads; ++kv_head) {
      std::vector<std::vector<double>> k, v;
      for (int p = 0; p < segment.start + segment.num_tokens; ++p) {
        ReadPosition(layout,
                     memory.data() +
                         table[p / kPageTokens] * layout.layer_page_bytes() +
                         layout.head_offset(kv_head),
                     p % kPageTokens, &k.emplace_back(), &v.emplace_back());
      }
      for (int i = 0; i < segment.num_tokens * shape.group(); ++i) {
        const int head = kv_head * shape.group() + i % shape.group();
        const int row = segment.row + i / shape.group();
        const int end = segment.start + i / shape.group() + 1;
        const int begin =
            choice.window > 0 ? std::max(0, end - choice.window) : 0;
        const float* query = q.data() + row * q_stride + head * head_dim;
        std::vector<int> kept(end - begin);
        std::iota(kept.begin(), kept.end(), begin);
        std::vector<double> scores(end);
        for (const int p : kept) {
          scores[p] =
              scale * std::inner_product(k[p].begin(), k[p].end(), query, 0.0);
          if (shape.cap > 0) {
            scores[p] = shape.cap * std::tanh(scores[p] / shape.cap);
          }
          scores[p] += AlibiBias(shape, scale, head, p, end);
        }
        if (sparsity < 1) {
          std::stable_sort(kept.begin(), kept.end(),
                           [&](int a, int b) { return scores[a] > scores[b]; });
          kept.resize(SparseCount(sparsity, end - begin));
        }
        std::erase_if(kept, [&](int p) { return std::isnan(scores[p]); });
        double top = -1e300, sum = 0;
        for (const int p : kept) top = std::max(top, scores[p]);
        double* to = out.data() + (row * shape.num_heads + head) * head_dim;
        for (const int p : kept) {
          const double weight = std::exp(scores[p] - top);
          sum += weight;
          for (int d = 0; d < head_dim; ++d) to[d] += weight * v[p][d];
        }
        for (int d = 0; d < head_dim; ++d) to[d] /= sum;
      }
    }
  }
  return out;
}

std::vector<float> AttentionWorld::OnCpu(float sparsity) const {
  const AttentionShape& shape = choice.shape;
  const float scale = shape.scale * choice.scale;
  const KvLayout& layout = shape.kv;
  const int head_dim = layout.head_dim;
  // Whole vectors are loaded, from beyond the last page, too.
  std::vector<std::byte> with_slack = memory;
  with_slack.resize(memory.size() + KvLayout::kSlackBytes);
  AttentionScratch scratch(head_dim, max_context + kPageTokens);
  std::vector<float> out(rows * shape.num_heads * head_dim);
  for (size_t s = 0; s < host_segments.size(); ++s) {
    const AttentionSegment& segment = host_segments[s];
    for (int kv_head = 0; kv_head < layout.num_kv_heads; ++kv_head) {
      const int all = segment.num_tokens * shape.group();
      for (int first = 0; first < all; first += kAttentionRows) {
        AttentionCall call;
        call.format = layout.format;
        call.head_dim = head_dim;
        call.head = with_slack.data() + layout.head_offset(kv_head);
        call.page_stride = layout.layer_page_bytes();
        call.pages = PagesOf(s);
        call.rows = std::min(kAttentionRows, all - first);
        call.cap = shape.cap;
        call.alibi = shape.alibi_heads > 0;
        if (shape.rounded_alibi) call.rounded_alibi_scale = scale;
        call.sparsity = segment.num_tokens == 1 ? sparsity : 1;
        for (int r = 0; r < call.rows; ++r) {
          const int head =
              kv_head * shape.group() + (first + r) % shape.group();
          const int token = (first + r) / shape.group();
          const int row = segment.row + token;
          call.end[r] = segment.start + token + 1;
          call.begin[r] =
              choice.window > 0 ? std::max(0, call.end[r] - choice.window) : 0;
          call.slope[r] = AlibiSlope(shape, head);
          call.out[r] = out.data() + (row * shape.num_heads + head) * head_dim;
          for (int d = 0; d < head_dim; ++d) {
            scratch.query(r)[d] =
                scale * q[row * q_stride + head * head_dim + d];
          }
        }
        Attend(call, scratch);
      }
    }
  }
  return out;
}

double RelativeError(const std::vector<float>& a,
                     const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace sluice
