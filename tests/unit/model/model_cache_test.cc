#include "runtime/model/pieces/model_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/model/pieces_testing.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

class ModelCacheTest : public ::testing::Test {
 protected:
  std::unique_ptr<ModelCache> Cache(uint64_t max_bytes = uint64_t{1} << 30) {
    auto cache =
        ModelCache::Create({.dir = dir_.path(), .max_bytes = max_bytes});
    EXPECT_TRUE(cache.ok()) << cache.status();
    return *std::move(cache);
  }
  // Opens a model of 4 pieces, whose bytes follow from `seed`.
  std::shared_ptr<CachedModel> Model(ModelCache& cache, uint32_t seed) {
    const std::string bytes = RandomBytes(4 * kPieceBytes, seed);
    auto model = cache.Open(ContentWith("{}", bytes), "{}");
    EXPECT_TRUE(model.ok()) << model.status();
    if ((*model)->Find(kFile) == nullptr) {
      EXPECT_TRUE((*model)->Add(kFile, ListOf(bytes)).ok());
    }
    return *std::move(model);
  }
  void Put(CachedModel& model, uint32_t seed, std::vector<uint64_t> pieces) {
    const std::string bytes = RandomBytes(4 * kPieceBytes, seed);
    for (const uint64_t piece : pieces) {
      const absl::string_view parts[] = {PieceOf(bytes, piece)};
      ASSERT_TRUE(model.Find(kFile)->Write(piece, parts).ok());
    }
  }
  static bool Has(CachedModel& model, uint64_t piece) {
    return model.Find(kFile)->state(piece) != PieceFile::State::kAbsent;
  }
  // Makes a model the one that was used longest ago, by `hours`.
  static void Age(const CachedModel& model, int hours) {
    const std::string lock = (model.path() / "lock").string();
    struct stat info;
    ASSERT_EQ(stat(lock.c_str(), &info), 0);
    timespec times[2] = {info.st_atim, info.st_mtim};
    times[1].tv_sec -= 3600 * hours;
    ASSERT_EQ(utimensat(AT_FDCWD, lock.c_str(), times, 0), 0);
  }

  TempDir dir_;
};

TEST_F(ModelCacheTest, KeepsModelsByTheirContent) {
  const auto cache = Cache();
  std::filesystem::path path;
  {
    const auto model = Model(*cache, 1);
    path = model->path();
    Put(*model, 1, {0, 2});
    EXPECT_NE(Model(*cache, 2)->path(), path);
    EXPECT_TRUE(std::filesystem::exists(path / "config.json"));
  }
  const auto again = Model(*cache, 1);
  EXPECT_EQ(again->path(), path);
  EXPECT_TRUE(Has(*again, 0));
  EXPECT_FALSE(Has(*again, 1));
  EXPECT_TRUE(Has(*again, 2));
}

TEST_F(ModelCacheTest, AListThatIsNotTheContentsIsRefused) {
  const auto cache = Cache();
  const std::string bytes = RandomBytes(2 * kPieceBytes, 1);
  const auto model = cache->Open(ContentWith("{}", bytes), "{}");
  ASSERT_TRUE(model.ok());
  const auto wrong =
      (*model)->Add(kFile, ListOf(RandomBytes(2 * kPieceBytes, 2)));
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ((*model)->Find(kFile), nullptr);
  EXPECT_TRUE((*model)->Add(kFile, ListOf(bytes)).ok());
}

TEST_F(ModelCacheTest, WhatIsNoModelIsRefused) {
  const std::string hash = ListOf("x")->FileHash();
  const auto check = [&](ModelContent::File file) {
    ModelContent content = ContentWith("{}", "x");
    content.files[1] = std::move(file);
    return CheckFetchable(content, "{}");
  };
  EXPECT_TRUE(check({"a-1.safetensors", 1, hash}).ok());
  for (const char* name :
       {"", "../model.safetensors", "a/b.safetensors", ".safetensors",
        "model.bin", "config.json", "a b.safetensors", "a\n.safetensors",
        "model.safetensors.pieces"}) {
    EXPECT_EQ(check({name, 1, hash}).code(), absl::StatusCode::kInvalidArgument)
        << name;
  }
  EXPECT_FALSE(check({kFile, UINT64_MAX, hash}).ok());
  EXPECT_FALSE(check({kFile, 1, ""}).ok());
  EXPECT_FALSE(check({kFile, 1, "1-5"}).ok());
  EXPECT_FALSE(CheckFetchable(ContentWith("{}", "x"), "{ }").ok());
  EXPECT_FALSE(CheckFetchable({}, "{}").ok());
  ModelContent bare = ContentWith("{}", "x");
  bare.files.erase(bare.files.begin());
  EXPECT_FALSE(CheckFetchable(bare, "{}").ok());
}

TEST_F(ModelCacheTest, TheModelUnusedForLongestGoesFirst) {
  const auto cache = Cache(11 * kPieceBytes);
  std::filesystem::path old, older;
  {
    const auto one = Model(*cache, 1);
    const auto two = Model(*cache, 2);
    Put(*one, 1, {0, 1, 2, 3});
    Put(*two, 2, {0, 1, 2, 3});
    old = one->path();
    older = two->path();
    Age(*one, 1);
    Age(*two, 2);
  }
  const auto model = Model(*cache, 3);
  ASSERT_TRUE(cache->Reserve(model.get(), Pieces({0, 1, 2, 3}), nullptr).ok());
  EXPECT_TRUE(std::filesystem::exists(old));
  EXPECT_FALSE(std::filesystem::exists(older));
  EXPECT_LE(cache->UsedBytes(), 11 * kPieceBytes);
}

TEST_F(ModelCacheTest, AModelThatWasRemovedIsNotInPlace) {
  const auto cache = Cache();
  const auto model = Model(*cache, 1);
  Put(*model, 1, {0});
  EXPECT_TRUE(model->InPlace());
  std::filesystem::remove_all(dir_.path());
  EXPECT_FALSE(model->InPlace());
  // What takes its place begins with nothing, and knows nothing of it.
  const auto next = Model(*cache, 1);
  EXPECT_TRUE(next->InPlace());
  EXPECT_FALSE(Has(*next, 0));
  EXPECT_FALSE(model->InPlace());
}

TEST_F(ModelCacheTest, AModelInUseStays) {
  const auto cache = Cache(6 * kPieceBytes);
  const auto used = Model(*cache, 1);
  Put(*used, 1, {0, 1, 2, 3});
  Age(*used, 5);
  const auto others = Cache(6 * kPieceBytes);
  const auto model = Model(*others, 2);
  const absl::Status full =
      others->Reserve(model.get(), Pieces({0, 1, 2, 3}), nullptr);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("other workers use"));
  for (uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(Has(*used, i));
  EXPECT_TRUE(others->Reserve(model.get(), Pieces({0}), nullptr).ok());
}

TEST_F(ModelCacheTest, PiecesOfAnotherStageMakeRoom) {
  const auto cache = Cache(3 * kPieceBytes + kPieceBytes / 2);
  {
    const auto model = Model(*cache, 1);
    Put(*model, 1, {0, 1});
    ASSERT_TRUE(cache->Reserve(model.get(), Pieces({0, 2, 3}), nullptr).ok());
    EXPECT_TRUE(Has(*model, 0));
    EXPECT_FALSE(Has(*model, 1));
    EXPECT_LE(cache->UsedBytes(), 3 * kPieceBytes + kPieceBytes / 2);
    // But not those that another process may use.
    Put(*model, 1, {2, 3});
    const auto also = Model(*cache, 1);
    EXPECT_EQ(cache->Reserve(model.get(), Pieces({0, 1, 2}), nullptr).code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(Has(*model, 3));
  }
}

TEST_F(ModelCacheTest, AStageLargerThanTheCacheIsRefused) {
  const auto cache = Cache(2 * kPieceBytes);
  const auto model = Model(*cache, 1);
  const absl::Status status =
      cache->Reserve(model.get(), Pieces({0, 1, 2}), nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the weights of this stage take 3.0 MiB"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--cache-space"));
}

}  // namespace
}  // namespace sluice
