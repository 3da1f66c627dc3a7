#include "runtime/gguf/gguf_blocks.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "runtime/gguf/gguf_types.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

class GgufBlocksTest : public testing::TestWithParam<const char*> {};

// gguf-py's floats (tests/golden/make_gguf_blocks.py), bit for bit but for the
// kind of NaN, on each instruction set of this machine.
TEST_P(GgufBlocksTest, AreTheReferencesFloats) {
  const GgufType* const type = FindGgufType(absl::string_view(GetParam()));
  ASSERT_NE(type, nullptr);
  ASSERT_TRUE(type->runs);
  std::ifstream file(TestsDir() + "/golden/gguf_blocks/" + GetParam() + ".bin",
                     std::ios::binary);
  const std::string golden((std::istreambuf_iterator<char>(file)), {});
  const size_t of_block =
      static_cast<size_t>(type->block_bytes) +
      sizeof(float) * static_cast<size_t>(type->block_elements);
  ASSERT_GT(golden.size(), 0u);
  ASSERT_EQ(golden.size() % of_block, 0u);
  const size_t blocks = golden.size() / of_block;
  std::vector<float> expected(blocks *
                              static_cast<size_t>(type->block_elements));
  std::memcpy(expected.data(),
              golden.data() + blocks * static_cast<size_t>(type->block_bytes),
              expected.size() * sizeof(float));
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    // Blocks begin anywhere.
    const std::string shifted = "x" + golden;
    std::vector<float> floats(expected.size(), -1);
    DequantizeGguf(*type, shifted.data() + 1, static_cast<int64_t>(blocks),
                   floats.data());
    for (size_t i = 0; i < floats.size(); ++i) {
      if (std::isnan(expected[i]) && std::isnan(floats[i])) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(floats[i]),
                std::bit_cast<uint32_t>(expected[i]))
          << hwy::TargetName(target) << " element " << i << ": " << floats[i]
          << " instead of " << expected[i];
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

INSTANTIATE_TEST_SUITE_P(Types, GgufBlocksTest,
                         testing::Values("F16", "BF16", "Q8_0", "Q4_0", "Q4_1",
                                         "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K",
                                         "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST(GgufTypesTest, AreFoundByNameAndNumber) {
  EXPECT_EQ(FindGgufType(12)->name, "Q4_K");
  EXPECT_EQ(FindGgufType("Q4_K")->number, 12u);
  EXPECT_EQ(FindGgufType(4), nullptr);
  EXPECT_EQ(FindGgufType("Q4_2"), nullptr);
  EXPECT_FALSE(FindGgufType("IQ2_XXS")->runs);
}

}  // namespace
}  // namespace sluice
