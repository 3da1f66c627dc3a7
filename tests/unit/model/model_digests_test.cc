#include "runtime/model/checkpoint/model_digests.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/unit/model/checkpoint_files.h"

namespace sluice {
namespace {

class ModelDigestsTest : public ::testing::Test {
 protected:
  ModelDigestsTest() {
    WriteFile(dir_.path() / "config.json",
              R"({"model_type":"llama","hidden_size":8,"intermediate_size":8,)"
              R"("num_hidden_layers":1,"num_attention_heads":1,)"
              R"("vocab_size":8,"max_position_embeddings":16})");
  }

  // Writes one tensor of this many zeros, which take no room on disk.
  void WriteWeights(int64_t bytes) {
    const std::string header =
        absl::StrCat(R"({"x":{"dtype":"F32","shape":[)", bytes / 4,
                     R"(],"data_offsets":[0,)", bytes, "]}}");
    WriteFile(weights_, SafetensorsBytes(header, ""));
    std::filesystem::resize_file(weights_, 8 + header.size() + bytes);
  }

  // Flips a byte like a fault of a disk: nothing else shows it.
  void FlipByte(int64_t at, bool put_time_back) {
    struct stat before {};
    const int fd = open(weights_.c_str(), O_RDWR);
    ASSERT_EQ(fstat(fd, &before), 0);
    char byte = 0;
    ASSERT_EQ(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    ASSERT_EQ(pwrite(fd, &byte, 1, at), 1);
    const timespec times[] = {before.st_atim, before.st_mtim};
    if (put_time_back) {
      ASSERT_EQ(futimens(fd, times), 0);
    }
    close(fd);
  }

  void SetTime(int64_t seconds) {
    const timespec times[] = {{seconds, 0}, {seconds, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, weights_.c_str(), times, 0), 0);
  }

  std::map<std::string, std::string> Digests() {
    auto model = ModelDir::Open(dir_.path());
    EXPECT_TRUE(model.ok()) << model.status();
    auto digests = ModelDigests(**model, false);
    EXPECT_TRUE(digests.ok()) << digests.status();
    return *digests;
  }

  TempDir dir_;
  const std::filesystem::path weights_ = dir_.path() / "model.safetensors";
};

TEST_F(ModelDigestsTest, EachByteOfSmallWeightsCounts) {
  WriteWeights(5 << 20);
  SetTime(1000);
  const auto first = Digests();
  EXPECT_THAT(first, ::testing::Contains(::testing::Key("config.json")));
  SetTime(2000);  // as of a copy
  EXPECT_EQ(Digests(), first);
  FlipByte(3'456'789, /*put_time_back=*/true);
  EXPECT_NE(Digests().at("weights"), first.at("weights"));
  FlipByte(3'456'789, /*put_time_back=*/true);
  EXPECT_EQ(Digests(), first);
}

TEST_F(ModelDigestsTest, OfLargeWeightsTheTimeCountsToo) {
  WriteWeights((int64_t{1} << 30) + 4096);
  SetTime(1000);
  const auto first = Digests();
  EXPECT_EQ(Digests(), first);
  FlipByte(123'456'789, /*put_time_back=*/false);
  const auto changed = Digests();
  EXPECT_NE(changed.at("weights"), first.at("weights"));
  EXPECT_EQ(changed.at("config.json"), first.at("config.json"));
}

}  // namespace
}  // namespace sluice
