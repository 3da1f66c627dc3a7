#include "runtime/memory/checksum.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

std::span<const std::byte> Bytes(const char* text) {
  return {reinterpret_cast<const std::byte*>(text), std::strlen(text)};
}

// The values are those of the xxhsum command (0.8.1): xxhsum -H3.
TEST(ChecksumTest, IsXxh3) {
  EXPECT_EQ(BlockChecksum({}), 0x2d06800538d394c2u);
  EXPECT_EQ(BlockChecksum(Bytes("abc")), 0x78af5f94892f3950u);
}

TEST(ChecksumTest, SeesEveryFlippedBit) {
  std::vector<std::byte> data(1000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = std::byte(i * 7);
  const uint64_t whole = BlockChecksum(data);
  for (size_t bit = 0; bit < 8 * data.size(); ++bit) {
    const std::byte mask = std::byte{1} << bit % 8;
    data[bit / 8] ^= mask;
    EXPECT_NE(BlockChecksum(data), whole);
    data[bit / 8] ^= mask;
  }
}

}  // namespace
}  // namespace sluice
