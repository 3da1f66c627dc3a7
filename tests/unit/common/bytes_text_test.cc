#include "common/text/bytes_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {

using testing::HasSubstr;

TEST(BytesText, TakesTheUnitThatFits) {
  EXPECT_EQ(BytesText(0), "0 bytes");
  EXPECT_EQ(BytesText(1023), "1023 bytes");
  EXPECT_EQ(BytesText(1024), "1.0 KiB");
  EXPECT_EQ(BytesText(1.5 * (1 << 20)), "1.5 MiB");
  EXPECT_EQ(BytesText(64.0 * (1 << 30)), "64.0 GiB");
}

TEST(BytesText, ReadsSizes) {
  EXPECT_EQ(*ParseByteSize("8GiB"), uint64_t{8} << 30);
  EXPECT_EQ(*ParseByteSize("1.5G"), uint64_t{3} << 29);
  EXPECT_EQ(*ParseByteSize("500MB"), 500'000'000u);
  EXPECT_EQ(*ParseByteSize("1073741824"), uint64_t{1} << 30);
  EXPECT_EQ(*ParseByteSize("1048576"), uint64_t{1} << 20);
  EXPECT_EQ(*ParseByteSize("8B"), 8u);
  EXPECT_EQ(*ParseByteSize("1KiB"), 1024u);
  for (const char* wrong :
       {"", "GiB", "-1GiB", "0", "8 GiB!", "8QiB", "1e30"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseByteSize(wrong).status()))
        << wrong;
  }
}

TEST(BytesText, AFewBytesNeedAUnit) {
  for (const char* few : {"8", "1048575", "64"}) {
    EXPECT_THAT(std::string(ParseByteSize(few).status().message()),
                HasSubstr(std::string("was ") + few + "GiB meant?"));
  }
}

}  // namespace
}  // namespace sluice
