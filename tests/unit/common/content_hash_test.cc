#include "common/content_hash.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"

namespace sluice {
namespace {

// The values are those of xxhash 4.1 for Python: xxh3_128_hexdigest.
TEST(ContentHashTest, IsXxh3HoweverBytesAreCut) {
  EXPECT_EQ(HexHash(""), "99aa06d3014798d86001c324468d497f");
  std::string text;
  for (int i = 0; i < 40; ++i) text += "one job, one answer";
  const std::string expected = "a103e7c08b682a4d45af64e7fdcbcb29";
  EXPECT_EQ(HexHash(text), expected);
  for (size_t piece = 1; piece <= text.size(); piece += 37) {
    ContentHash hash;
    for (size_t at = 0; at < text.size(); at += piece) {
      hash.Add(absl::string_view(text).substr(at, piece));
    }
    EXPECT_EQ(hash.Hex(), expected) << piece;
    EXPECT_EQ(hash.Bytes(), absl::HexStringToBytes(expected));
  }
}

}  // namespace
}  // namespace sluice
