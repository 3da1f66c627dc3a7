#include "tests/unit/kernels/attention_cache.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "common/float16.h"
#include "runtime/kernels/cpu/attention_parts.h"

namespace sluice {
namespace {

// Returns x rounded to bfloat16, to even.
float Bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000U);
}

uint16_t Half(const std::byte* p, size_t index) {
  uint16_t bits;
  std::memcpy(&bits, p + index * sizeof(bits), sizeof(bits));
  return bits;
}

double Element(const KvLayout& layout, const std::byte* p, size_t index) {
  if (layout.format == KvFormat::kBFloat16) {
    return BFloat16ToFloat(Half(p, index));
  }
  if (layout.format == KvFormat::kFloat16) {
    return Float16ToFloat(Half(p, index));
  }
  float x;
  std::memcpy(&x, p + index * sizeof(x), sizeof(x));
  return x;
}

// scale * code + minimum, of element i at a position.
double Dequantize(const std::byte* scales, int i, int slot, int code) {
  const std::byte* group = scales + i / kKvGroup * 2 * kPageTokens * 2;
  return static_cast<double>(Float16ToFloat(Half(group, slot))) * code +
         Float16ToFloat(Half(group, kPageTokens + slot));
}

int Nibble(std::byte b, bool high) {
  return std::to_integer<int>(high ? b >> 4 : b & std::byte{15});
}

}  // namespace

int ReadCode(const KvLayout& layout, const std::byte* head, bool is_k, int slot,
             int i) {
  const std::byte* v_row =
      head + layout.v_offset() + slot * layout.v_row_bytes();
  if (layout.format == KvFormat::kInt8) {
    return std::to_integer<int>(
        is_k ? head[(i / 4 * kPageTokens + slot) * 4 + i % 4] : v_row[i]);
  }
  if (is_k) {
    return Nibble(head[(i / 4 * 16 + slot % 16) * 4 + i % 4], slot >= 16);
  }
  const int part = i / 32 * 32;
  const int half = (std::min(32, layout.head_dim - part) + 1) / 2;
  return Nibble(v_row[part / 2 + (i - part) % half], i - part >= half);
}

void ReadPosition(const KvLayout& layout, const std::byte* head, int slot,
                  std::vector<double>* k, std::vector<double>* v) {
  const int n = layout.head_dim;
  k->resize(n);
  v->resize(n);
  for (int i = 0; i < n; ++i) {
    if (!layout.quantized()) {
      (*k)[i] = Element(layout, head, i * kPageTokens + slot);
      (*v)[i] = Element(layout, head + layout.v_offset(), slot * n + i);
      continue;
    }
    (*k)[i] = Dequantize(head + layout.k_scales_offset(), i, slot,
                         ReadCode(layout, head, true, slot, i));
    (*v)[i] = Dequantize(head + layout.v_scales_offset(), i, slot,
                         ReadCode(layout, head, false, slot, i));
  }
}

AttentionCache::Rows AttentionCache::Rows::Part(size_t first,
                                                size_t last) const {
  Rows part;
  for (size_t i = first; i < std::min(last, ids.size()); ++i) {
    part.Add(ids[i], begin[i], end[i]);
  }
  return part;
}

AttentionCache::AttentionCache(KvFormat format, int head_dim, int length)
    : layout_{1, 1, head_dim, format}, k_(length), v_(length) {
  const int num_pages = (length + kPageTokens - 1) / kPageTokens;
  pages_.resize(num_pages);
  std::iota(pages_.begin(), pages_.end(), 0);
  std::mt19937 random(5);
  std::shuffle(pages_.begin(), pages_.end(), random);
  // An earlier sequence may have left anything in the pages: NaN must not leak
  // from it.
  memory_.assign(num_pages * layout_.page_bytes() + KvLayout::kSlackBytes,
                 std::byte{0xff});
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> k(length * head_dim), v(length * head_dim);
  for (float& x : k) x = uniform(random);
  for (float& x : v) x = uniform(random);
  // Positions are stored in chunks of several sizes, as steps come.
  for (int at = 0, n = 1; at < length; n = n % 40 + 7) {
    const int count =
        std::min({n, length - at, kPageTokens - at % kPageTokens});
    StoreKv(k.data() + at * head_dim, head_dim, v.data() + at * head_dim,
            head_dim, at % kPageTokens, count, head_dim, format, Page(at));
    at += count;
  }
  ReadBack(0, length);
}

std::byte* AttentionCache::Page(int position) {
  return memory_.data() +
         pages_[position / kPageTokens] * layout_.layer_page_bytes();
}

void AttentionCache::ReadBack(int begin, int end) {
  for (int j = begin; j < end; ++j) {
    ReadPosition(layout_, Page(j), j % kPageTokens, &k_[j], &v_[j]);
  }
}

void AttentionCache::Store(int position, const std::vector<float>& k,
                           const std::vector<float>& v) {
  StoreKv(k.data(), k.size(), v.data(), v.size(), position % kPageTokens, 1,
          layout_.head_dim, layout_.format, Page(position));
  ReadBack(position, position + 1);
}

void AttentionCache::StoreV(int position, const std::vector<float>& v) {
  // K is stored with it, and then put back byte by byte.
  std::byte* page = Page(position);
  const std::vector<std::byte> k(page, page + layout_.v_offset());
  Store(position, v, v);
  std::copy(k.begin(), k.end(), page);
  ReadBack(position, position + 1);
}

std::vector<std::vector<float>> AttentionCache::Attend(
    const Rows& rows, float sparsity, uint64_t* v_bytes_read,
    std::vector<uint32_t>* masks) {
  const int head_dim = layout_.head_dim;
  AttentionScratch scratch(head_dim,
                           sparsity < 1 ? static_cast<int>(k_.size()) : 0);
  AttentionCall call;
  call.format = layout_.format;
  call.head_dim = head_dim;
  call.head = memory_.data();
  call.page_stride = layout_.layer_page_bytes();
  call.pages = pages_;
  call.rows = rows.ids.size();
  call.sparsity = sparsity;
  call.cap = cap_;
  call.alibi = slope_ != 0;
  call.rounded_alibi_scale = rounded_scale_;
  std::fill(std::begin(call.slope), std::end(call.slope), slope_);
  call.sinks = sink_.has_value();
  std::fill(std::begin(call.sink), std::end(call.sink), sink_.value_or(0));
  call.v_bytes_read = v_bytes_read;
  std::vector<std::vector<float>> out(rows.ids.size(),
                                      std::vector<float>(head_dim));
  for (size_t r = 0; r < rows.ids.size(); ++r) {
    const std::vector<float> q = Query(rows.ids[r]);
    std::copy(q.begin(), q.end(), scratch.query(r));
    call.begin[r] = rows.begin[r];
    call.end[r] = rows.end[r];
    call.out[r] = out[r].data();
  }
  if (masks != nullptr) {
    masks->assign(pages_.size(), 0xdeadbeef);
    AttendSparse(call, scratch, masks->data());
  } else {
    sluice::Attend(call, scratch);
  }
  return out;
}

std::vector<float> AttentionCache::Query(int id) const {
  std::mt19937 random(100 + id);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> q(layout_.head_dim);
  for (float& x : q) x = uniform(random);
  return q;
}

std::vector<double> AttentionCache::Scores(int id, int begin, int end) const {
  const std::vector<float> query = Query(id);
  std::vector<double> q(query.begin(), query.end());
  if (layout_.quantized()) {
    // The query is rounded as attention.h says.
    const float levels = layout_.format == KvFormat::kInt8 ? 32767 : 127;
    for (size_t first = 0; first < q.size(); first += kKvGroup) {
      const size_t last = std::min(first + kKvGroup, q.size());
      float max = 0;
      for (size_t i = first; i < last; ++i) {
        max = std::max(max, std::abs(query[i]));
      }
      const float factor = levels / max;
      for (size_t i = first; i < last; ++i) {
        q[i] = std::nearbyint(query[i] * factor) * max / levels;
      }
    }
  }
  std::vector<double> s;
  for (int j = begin; j < end; ++j) {
    s.push_back(std::inner_product(k_[j].begin(), k_[j].end(), q.begin(), 0.0));
    if (cap_ > 0) s.back() = cap_ * std::tanh(s.back() / cap_);
    if (rounded_scale_ == 0) {
      s.back() += slope_ * j;
    } else {
      s.back() +=
          rounded_scale_ * Bf16(Bf16(slope_) * Bf16(static_cast<float>(j)));
    }
  }
  return s;
}

double AttentionCache::Tolerance() const {
  switch (layout_.format) {
    case KvFormat::kInt8:
      return 1e-4;
    case KvFormat::kInt4:
      return 2e-2;
    default:
      return 3e-6;
  }
}

std::vector<double> AttentionCache::Reference(
    int id, const std::vector<int>& positions) const {
  const int begin = *std::min_element(positions.begin(), positions.end());
  const int end = *std::max_element(positions.begin(), positions.end()) + 1;
  const std::vector<double> s = Scores(id, begin, end);
  double max = -1e300, sum = 0;
  for (const int j : positions) max = std::max(max, s[j - begin]);
  if (sink_) {
    max = std::max<double>(max, *sink_);
    sum = std::exp(*sink_ - max);
  }
  std::vector<double> out(layout_.head_dim);
  for (const int j : positions) {
    const double p = std::exp(s[j - begin] - max);
    sum += p;
    for (int i = 0; i < layout_.head_dim; ++i) out[i] += p * v_[j][i];
  }
  for (double& x : out) x /= sum;
  return out;
}

std::vector<double> AttentionCache::Reference(int id, int begin,
                                              int end) const {
  std::vector<int> positions(end - begin);
  std::iota(positions.begin(), positions.end(), begin);
  return Reference(id, positions);
}

}  // namespace sluice
