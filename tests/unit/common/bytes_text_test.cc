#include "common/text/bytes_text.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(BytesText, TakesTheUnitThatFits) {
  EXPECT_EQ(BytesText(0), "0 bytes");
  EXPECT_EQ(BytesText(1023), "1023 bytes");
  EXPECT_EQ(BytesText(1024), "1.0 KiB");
  EXPECT_EQ(BytesText(1.5 * (1 << 20)), "1.5 MiB");
  EXPECT_EQ(BytesText(64.0 * (1 << 30)), "64.0 GiB");
}

}  // namespace
}  // namespace sluice
