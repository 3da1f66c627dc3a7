#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "common/float16.h"
#include "nlohmann/json.hpp"
#include "runtime/kernels/cpu/attention.h"
#include "runtime/kv/kv_layout.h"
#include "tests/support/test_paths.h"
#include "tests/unit/kernels/attention_cache.h"
#include "tests/unit/kernels/targets.h"

namespace sluice {
namespace {

constexpr KvFormat kFormats[] = {KvFormat::kFloat32, KvFormat::kBFloat16,
                                 KvFormat::kFloat16, KvFormat::kInt8,
                                 KvFormat::kInt4};

TEST(KvLayoutTest, Sizes) {
  struct Case {
    KvFormat format;
    int head_dim;
    size_t k_scales, v, v_row, v_scales, bytes;
  };
  // Those that are not quantized have no scales.
  const Case cases[] = {
      {KvFormat::kFloat32, 64, 0, 8192, 256, 0, 16384},
      {KvFormat::kBFloat16, 64, 0, 4096, 128, 0, 8192},
      {KvFormat::kBFloat16, 5, 0, 320, 10, 0, 640},
      {KvFormat::kFloat16, 64, 0, 4096, 128, 0, 8192},
      {KvFormat::kInt8, 64, 2048, 2176, 64, 4224, 4352},
      {KvFormat::kInt4, 64, 1024, 1152, 32, 2176, 2304},
      {KvFormat::kInt4, 128, 2048, 2304, 64, 4352, 4608},
      {KvFormat::kInt8, 80, 2560, 2816, 80, 5376, 5632},
      {KvFormat::kInt4, 80, 1280, 1536, 40, 2816, 3072},
      // An odd row is padded by its half byte; a page of them to 64 bytes.
      {KvFormat::kInt8, 5, 256, 384, 5, 576, 704},
      {KvFormat::kInt4, 5, 128, 256, 3, 384, 512},
  };
  for (const Case& c : cases) {
    const KvLayout layout{3, 2, c.head_dim, c.format};
    SCOPED_TRACE(testing::Message()
                 << KvFormatName(c.format) << " " << c.head_dim);
    EXPECT_EQ(layout.v_offset(), c.v);
    EXPECT_EQ(layout.v_row_bytes(), c.v_row);
    EXPECT_EQ(layout.head_bytes(), c.bytes);
    if (layout.quantized()) {
      EXPECT_EQ(layout.k_scales_offset(), c.k_scales);
      EXPECT_EQ(layout.v_scales_offset(), c.v_scales);
    }
    EXPECT_EQ(layout.head_offset(1), c.bytes);
    EXPECT_EQ(layout.layer_page_bytes(), 2 * c.bytes);
    EXPECT_EQ(layout.page_bytes(), 6 * c.bytes);
    EXPECT_EQ(layout.layer_page_bytes() % 64, 0u);
  }
}

// Random rows of K and V of a page, and blocks to store them to.
struct Page {
  Page(KvFormat format, int head_dim, int seed)
      : layout{1, 1, head_dim, format} {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.5f, 2.0f);
    k.resize(kPageTokens * head_dim);
    v.resize(kPageTokens * head_dim);
    for (float& x : k) x = normal(random);
    for (float& x : v) x = normal(random);
  }
  std::vector<std::byte> Block(int fill) const {
    return std::vector<std::byte>(layout.head_bytes(),
                                  static_cast<std::byte>(fill));
  }
  void Store(int slot, int count, std::vector<std::byte>* block) const {
    const int n = layout.head_dim;
    StoreKv(k.data() + slot * n, n, v.data() + slot * n, n, slot, count, n,
            layout.format, block->data());
  }

  KvLayout layout;
  std::vector<float> k, v;
};

// The bytes are the same however positions are grouped and ordered, and
// whatever lay there before.
TEST(StoreKvTest, OneByOneEqualsTogether) {
  ForEachTarget([](const char* target) {
    for (const KvFormat format : kFormats) {
      for (const int head_dim : {1, 5, 16, 33, 40, 64, 80, 96, 128}) {
        SCOPED_TRACE(testing::Message() << target << " " << KvFormatName(format)
                                        << " " << head_dim);
        const Page page(format, head_dim, 3);
        for (const int fill : {0, 0xff}) {
          auto together = page.Block(fill);
          page.Store(0, kPageTokens, &together);
          auto singly = page.Block(fill);
          for (int j = 0; j < kPageTokens; ++j) page.Store(j, 1, &singly);
          ASSERT_EQ(singly, together);
          auto backwards = page.Block(fill);
          page.Store(20, 12, &backwards);
          page.Store(13, 7, &backwards);
          page.Store(0, 13, &backwards);
          ASSERT_EQ(backwards, together);
        }
      }
    }
  });
}

TEST(StoreKvTest, LeavesOtherPositionsAlone) {
  for (const KvFormat format : kFormats) {
    for (const int head_dim : {5, 64, 80}) {
      const Page page(format, head_dim, 3);
      const Page other(format, head_dim, 4);
      auto block = page.Block(0);
      page.Store(0, kPageTokens, &block);
      other.Store(7, 11, &block);
      auto want = page.Block(0xff);
      page.Store(0, 7, &want);
      other.Store(7, 11, &want);
      page.Store(18, 14, &want);
      // All positions are compared, but not the bytes that stand for no
      // position.
      std::vector<double> k, v, want_k, want_v;
      for (int j = 0; j < kPageTokens; ++j) {
        ReadPosition(page.layout, block.data(), j, &k, &v);
        ReadPosition(page.layout, want.data(), j, &want_k, &want_v);
        ASSERT_EQ(k, want_k) << j;
        ASSERT_EQ(v, want_v) << j;
      }
    }
  }
}

// Rows may be strided.
TEST(StoreKvTest, Strides) {
  for (const KvFormat format : kFormats) {
    const Page page(format, 24, 3);
    auto want = page.Block(0);
    page.Store(0, kPageTokens, &want);
    std::vector<float> k(kPageTokens * 31), v(kPageTokens * 29);
    for (int j = 0; j < kPageTokens; ++j) {
      std::copy_n(page.k.data() + j * 24, 24, k.data() + j * 31);
      std::copy_n(page.v.data() + j * 24, 24, v.data() + j * 29);
    }
    auto got = page.Block(0);
    StoreKv(k.data(), 31, v.data(), 29, 0, kPageTokens, 24, format, got.data());
    EXPECT_EQ(got, want);
  }
}

// An error is at most s / 2, plus what rounding the minimum and the scale costs
// at the ends of the range.
TEST(StoreKvTest, ErrorIsBounded) {
  for (const KvFormat format : {KvFormat::kInt8, KvFormat::kInt4}) {
    const double levels = format == KvFormat::kInt8 ? 255 : 15;
    for (const int head_dim : {1, 5, 40, 64, 80, 128}) {
      const Page page(format, head_dim, 8);
      auto block = page.Block(0xff);
      page.Store(0, kPageTokens, &block);
      for (int j = 0; j < kPageTokens; ++j) {
        std::vector<double> k, v;
        ReadPosition(page.layout, block.data(), j, &k, &v);
        for (int begin = 0; begin < head_dim; begin += kKvGroup) {
          const int end = std::min(begin + kKvGroup, head_dim);
          for (const bool is_k : {true, false}) {
            const float* x = (is_k ? page.k : page.v).data() + j * head_dim;
            const std::vector<double>& got = is_k ? k : v;
            const auto [low, high] = std::minmax_element(x + begin, x + end);
            const double scale = (*high - *low) / levels;
            // Half a unit in the last of fp16's 11 bits.
            const double rounding =
                std::ldexp(std::abs(*low) + *high - *low, -11);
            for (int i = begin; i < end; ++i) {
              ASSERT_LE(std::abs(got[i] - x[i]),
                        scale / 2 * (1 + 0x1p-10) + 2 * rounding + 1e-7);
            }
          }
        }
      }
    }
  }
}

std::vector<float> Floats(const std::string& hex) {
  std::vector<float> values;
  for (size_t i = 0; i < hex.size(); i += 8) {
    values.push_back(std::bit_cast<float>(
        static_cast<uint32_t>(std::stoul(hex.substr(i, 8), nullptr, 16))));
  }
  return values;
}

// The bytes are bit for bit what numpy makes of the definition.
TEST(StoreKvTest, MatchesTheGoldenFile) {
  std::ifstream file(TestsDir() + "/golden/kv_quant/kv_quant_golden.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 30u);
  ForEachTarget([&](const char* target) {
    for (const auto& golden : cases) {
      const std::vector<float> x = Floats(golden.at("values"));
      const int n = static_cast<int>(x.size());
      for (const KvFormat format : {KvFormat::kInt8, KvFormat::kInt4}) {
        SCOPED_TRACE(testing::Message() << target << " " << KvFormatName(format)
                                        << " " << golden.at("name"));
        const auto& want = golden.at(std::string(KvFormatName(format)));
        const KvLayout layout{1, 1, n, format};
        for (const int slot : {0, 3, 15, 16, 31}) {
          std::vector<std::byte> block(layout.head_bytes(), std::byte{0xff});
          StoreKv(x.data(), n, x.data(), n, slot, 1, n, format, block.data());
          for (const bool is_k : {true, false}) {
            const std::byte* scales =
                block.data() +
                (is_k ? layout.k_scales_offset() : layout.v_scales_offset());
            for (int g = 0; g < layout.groups(); ++g) {
              uint16_t bits[2 * kPageTokens];
              std::memcpy(bits, scales + g * sizeof(bits), sizeof(bits));
              ASSERT_EQ(bits[slot], want.at("scales").at(g));
              ASSERT_EQ(bits[kPageTokens + slot], want.at("minima").at(g));
            }
            for (int i = 0; i < n; ++i) {
              ASSERT_EQ(ReadCode(layout, block.data(), is_k, slot, i),
                        want.at("codes").at(i))
                  << i;
            }
          }
        }
      }
    }
  });
}

// A constant group comes back as fp16 has it.
TEST(StoreKvTest, ConstantsAreExact) {
  for (const KvFormat format : {KvFormat::kInt8, KvFormat::kInt4}) {
    for (const float x : {0.0f, 1.0f, -0.3330078125f, 65504.0f, 0x1p-24f}) {
      const KvLayout layout{1, 1, 80, format};
      const std::vector<float> row(80, x);
      std::vector<std::byte> block(layout.head_bytes(), std::byte{0xff});
      StoreKv(row.data(), 80, row.data(), 80, 9, 1, 80, format, block.data());
      std::vector<double> k, v;
      ReadPosition(layout, block.data(), 9, &k, &v);
      EXPECT_EQ(k, std::vector<double>(80, x));
      EXPECT_EQ(v, std::vector<double>(80, x));
    }
  }
}

}  // namespace
}  // namespace sluice
