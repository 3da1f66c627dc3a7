// Tensors of files whose pieces are known are those that were hashed.

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/float16.h"
#include "gmock/gmock.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/model/checkpoint_files.h"
#include "tests/unit/model/pieces_testing.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

class CheckedSafetensorsTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 700, kColumns = 1001;
  const TensorRef ref_ = {{"w"}, TensorRole::kQWeight, {kRows, kColumns}};

  CheckedSafetensorsTest() : values_(kRows * kColumns) {
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i] = static_cast<uint16_t>(0x3C00 + i % 512);
    }
    const std::string data = BytesOf(values_);
    // Its length is odd, so that borders of pieces cut elements.
    std::string header =
        absl::StrCat(R"({"w":{"dtype":"BF16","shape":[)", kRows, ",", kColumns,
                     R"(],"data_offsets":[0,)", data.size(), "]}}");
    if (header.size() % 2 == 0) header += ' ';
    file_ = SafetensorsBytes(header, data);
    WriteFile(path_, file_);
  }
  absl::StatusOr<std::unique_ptr<SafetensorsSource>> Open() {
    return SafetensorsSource::Open(dir_.path(), {{kFile, ListOf(file_)}});
  }
  absl::Status Read(const SafetensorsSource& source) {
    std::vector<float> out(values_.size());
    const absl::Status status = source.ReadRows(ref_, 0, kRows, out.data());
    for (size_t i = 0; status.ok() && i < out.size(); ++i) {
      if (out[i] != BFloat16ToFloat(values_[i])) {
        ADD_FAILURE() << "element " << i << ": " << out[i];
        break;
      }
    }
    return status;
  }
  // Changes a byte of the file in place.
  void Change(size_t place) {
    std::fstream out(path_, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(static_cast<std::streamoff>(place));
    out.put(static_cast<char>(file_[place] ^ 1));
  }
  static void ExpectNamed(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(kFile));
  }

  TempDir dir_;
  const std::filesystem::path path_ = dir_.path() / kFile;
  std::vector<uint16_t> values_;
  std::string file_;
};

TEST_F(CheckedSafetensorsTest, WhatIsReadIsWhatWasHashed) {
  auto source = Open();
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_TRUE(Read(**source).ok());
  auto again = Open();
  ASSERT_TRUE(again.ok()) << again.status();
  Change(file_.size() - 1);
  ExpectNamed(Read(**again));
}

TEST_F(CheckedSafetensorsTest, AHeaderOrASizeThatChangedIsRefused) {
  Change(12);
  ExpectNamed(Open().status());
  WriteFile(path_, file_ + "x");
  ExpectNamed(Open().status());
  std::filesystem::resize_file(path_, 100);
  ExpectNamed(Open().status());
  WriteFile(path_, file_);
  auto source = Open();
  ASSERT_TRUE(source.ok()) << source.status();
  std::filesystem::resize_file(path_, kPieceBytes);
  ExpectNamed(Read(**source));
}

TEST_F(CheckedSafetensorsTest, WhatGaveTheContentsIdIsWhatIsReadAfterIt) {
  const std::string cache = dir_.path() / "hashes";
  const auto id = [&](const SafetensorsSource& source) {
    return source.ContentId(cache, [](uint64_t) { return absl::OkStatus(); });
  };
  auto source = SafetensorsSource::Open(dir_.path());
  ASSERT_TRUE(source.ok()) << source.status();
  const auto before = id(**source);
  ASSERT_TRUE(before.ok()) << before.status();
  Change(file_.size() - 1);
  ExpectNamed(Read(**source));
  // The next one hashes the file anew, though it may look unchanged.
  auto next = SafetensorsSource::Open(dir_.path());
  ASSERT_TRUE(next.ok()) << next.status();
  const auto after = id(**next);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_NE(*after, *before);
  std::vector<float> out(values_.size());
  EXPECT_TRUE((*next)->ReadRows(ref_, 0, kRows, out.data()).ok());
}

}  // namespace
}  // namespace sluice
