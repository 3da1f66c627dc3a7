#include "coordinator/jobs/model_record.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace sluice {
namespace {

class ModelRecordTest : public ::testing::Test {
 protected:
  ModelRecordTest()
      : path_(::testing::TempDir() + "/record-" + std::to_string(getpid())) {}
  ~ModelRecordTest() override { std::filesystem::remove(path_); }

  const std::filesystem::path path_;
};

TEST_F(ModelRecordTest, GivesBackWhatWasWritten) {
  EXPECT_EQ(ReadModelRecord(path_).status().code(),
            absl::StatusCode::kNotFound);
  const ModelContent content = {{{"config.json", 12, "ab"},
                                 {"model 1 of 2.safetensors", 1ull << 40, "cd"},
                                 {"not known", 0, ""}}};
  ModelContent with_copies = content;
  with_copies.copies = R"({"model 1 of 2.safetensors":["end a b"]})";
  for (const ModelContent& c : {content, with_copies, ModelContent()}) {
    ASSERT_TRUE(WriteModelRecord(path_, c).ok());
    EXPECT_EQ(*ReadModelRecord(path_), c);
  }
}

TEST_F(ModelRecordTest, DamageIsNoticed) {
  ASSERT_TRUE(WriteModelRecord(path_, {{{"config.json", 12, "ab"}}}).ok());
  std::string text;
  {
    std::ifstream in(path_);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  for (size_t i = 0; i <= text.size(); ++i) {
    std::string damaged = text.substr(0, i);
    if (i == text.size()) damaged[20] ^= 1;
    std::ofstream(path_, std::ios::trunc) << damaged;
    EXPECT_EQ(ReadModelRecord(path_).status().code(),
              absl::StatusCode::kDataLoss)
        << i;
  }
}

TEST_F(ModelRecordTest, WhereNothingCanBeWritten) {
  EXPECT_FALSE(WriteModelRecord("/nonexistent/record", {}).ok());
}

}  // namespace
}  // namespace sluice
