#include "common/types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <type_traits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/host/logging.h"

namespace sluice {
namespace {

TEST(StrongIntTest, ComparesHashesAndDoesNotMix) {
  EXPECT_EQ(SequenceId().value(), 0);
  EXPECT_EQ(SequenceId(3), SequenceId(3));
  EXPECT_LT(SequenceId(-3), SequenceId(3));
  EXPECT_EQ(SequenceId(int64_t{1} << 40).value(), int64_t{1} << 40);
  const absl::flat_hash_set<SequenceId> ids = {SequenceId(1), SequenceId(2),
                                               SequenceId(1)};
  EXPECT_EQ(ids.size(), 2u);
  EXPECT_TRUE(ids.contains(SequenceId(2)));
  static_assert(!std::is_convertible_v<int64_t, SequenceId>);
  static_assert(!std::is_convertible_v<SequenceId, int64_t>);
  static_assert(!std::is_convertible_v<SequenceId, JobId>);
  static_assert(!std::is_constructible_v<StageId, BlockId>);
}

TEST(LayerRangeTest, SizeAndEquality) {
  EXPECT_EQ((LayerRange{3, 7}).size(), 4);
  EXPECT_EQ((LayerRange{3, 7}), (LayerRange{3, 7}));
  EXPECT_NE((LayerRange{3, 7}), (LayerRange{3, 8}));
}

TEST(DTypeTest, ParsesItsNames) {
  for (const char* name : {"float32", "fp32", "float"})
    EXPECT_EQ(*ParseDTypeChoice(name), DTypeChoice::kFloat32) << name;
  for (const char* name : {"bfloat16", "bf16"})
    EXPECT_EQ(*ParseDTypeChoice(name), DTypeChoice::kBFloat16) << name;
  for (const char* name : {"float16", "fp16", "half"})
    EXPECT_EQ(*ParseDTypeChoice(name), DTypeChoice::kFloat16) << name;
  EXPECT_EQ(*ParseDTypeChoice("auto"), DTypeChoice::kAuto);
  EXPECT_EQ(*ParseDTypeChoice(DTypeName(DType::kFloat32)),
            DTypeChoice::kFloat32);
  EXPECT_EQ(*ParseDTypeChoice(DTypeName(DType::kBFloat16)),
            DTypeChoice::kBFloat16);
  EXPECT_EQ(*ParseDTypeChoice(DTypeName(DType::kFloat16)),
            DTypeChoice::kFloat16);
}

TEST(DTypeTest, RefusesOtherNames) {
  for (const char* name : {"", "float64", "Float32", "auto "}) {
    const absl::Status status = ParseDTypeChoice(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                ::testing::HasSubstr(absl::StrCat("\"", name, "\"")));
  }
}

TEST(LoggingTest, ShowsTheLevelAskedForAndAbove) {
  EXPECT_FALSE(SetLogLevel(""));
  EXPECT_FALSE(SetLogLevel("INFO"));
  for (const char* level : {"debug", "info", "warning", "error"}) {
    ASSERT_TRUE(SetLogLevel(level));
    ::testing::internal::CaptureStderr();
    LogDebug("at debug");
    LogInfo("at info");
    LogWarning("at warning {} %s");  // no format string
    LogError("at error");
    const std::string shown = ::testing::internal::GetCapturedStderr();
    const std::string all = "debug info warning error";
    for (const char* other : {"debug", "info", "warning", "error"}) {
      EXPECT_EQ(shown.find("at " + std::string(other)) != std::string::npos,
                all.find(other) >= all.find(level))
          << level << " " << other;
    }
  }
  ASSERT_TRUE(SetLogLevel("info"));
}

TEST(LoggingTest, JsonHasAnObjectALine) {
  const auto logged = [](const auto& log) {
    ::testing::internal::CaptureStderr();
    log();
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_FALSE(SetLogFormat("xml", "x"));
  EXPECT_FALSE(LogsJson());
  EXPECT_THAT(
      logged([] { LogInfo("of ", LogJob("job_7"), ", 2 lines\nhere"); }),
      ::testing::MatchesRegex(
          "[0-9T:.-]+Z I [0-9]+ of job=job_7, 2 lines\n    here\n"));
  ASSERT_TRUE(SetLogFormat("json", "program \"x\""));
  EXPECT_TRUE(LogsJson());
  constexpr char kBegin[] =
      "\\{\"time\":\"[0-9-]+T[0-9:]+[.][0-9][0-9][0-9]Z\",\"severity\":\"";
  constexpr char kProgram[] =
      "\",\"thread\":[0-9]+,\"component\":\"program \\\\\"x\\\\\"\",";
  EXPECT_THAT(
      logged([] {
        LogWarning(LogJob("job_7"), " of ", LogWorker("a\n\"b"), " and ",
                   LogWorker("c"), " at ", LogEpoch(3), " \xFF\xC2\x9B");
      }),
      ::testing::MatchesRegex(absl::StrCat(
          kBegin, "warning", kProgram,
          "\"job\":\"job_7\",\"worker\":\"a\\\\n\\\\\"b\",\"epoch\":\"3\","
          "\"message\":\"job=job_7 of worker=a\\\\n\\\\\"b and worker=c at "
          "epoch=3 \xEF\xBF\xBD\\\\u009b\"\\}\n")));
  SetLogWorker("me");
  EXPECT_THAT(logged([] { LogError("x"); }),
              ::testing::MatchesRegex(
                  absl::StrCat(kBegin, "error", kProgram,
                               "\"worker\":\"me\",\"message\":\"x\"\\}\n")));
  EXPECT_THAT(logged([] { LogInfo(LogWorker("other")); }),
              ::testing::HasSubstr("\"worker\":\"other\",\"message\""));
  SetLogWorker("");
  ASSERT_TRUE(SetLogFormat("text", ""));
}

TEST(KvFormatTest, ParsesItsNames) {
  for (const KvFormat format :
       {KvFormat::kFloat32, KvFormat::kBFloat16, KvFormat::kFloat16,
        KvFormat::kInt8, KvFormat::kInt4}) {
    EXPECT_EQ(*ParseKvFormat(KvFormatName(format)), format);
  }
  EXPECT_EQ(*ParseKvFormat("fp32"), KvFormat::kFloat32);
  EXPECT_EQ(*ParseKvFormat("bf16"), KvFormat::kBFloat16);
  EXPECT_EQ(*ParseKvFormat("fp16"), KvFormat::kFloat16);
  for (const char* name : {"", "auto", "int", "INT4", "int2"}) {
    const absl::Status status = ParseKvFormat(name).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), testing::HasSubstr("int8, int4"));
  }
  EXPECT_EQ(UnquantizedKvFormat(DType::kFloat32), KvFormat::kFloat32);
  EXPECT_EQ(UnquantizedKvFormat(DType::kBFloat16), KvFormat::kBFloat16);
  EXPECT_EQ(UnquantizedKvFormat(DType::kFloat16), KvFormat::kFloat16);
}

}  // namespace
}  // namespace sluice
