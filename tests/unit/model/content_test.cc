#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/content_hash.h"
#include "common/piece_list.h"
#include "common/threads/mutex.h"
#include "gmock/gmock.h"
#include "runtime/model/checkpoint/content_check.h"
#include "runtime/model/checkpoint/content_hashes.h"
#include "runtime/model/checkpoint/model_content.h"
#include "tests/unit/model/checkpoint_files.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

// -- Comparisons.

ModelContent Content(std::vector<ModelContent::File> files) {
  return {std::move(files)};
}

TEST(DifferenceOfTest, NamesTheFirstFile) {
  const ModelContent whole =
      Content({{"a", 1, "xx"}, {"b", 2, "yy"}, {"c", 3, "zz"}});
  EXPECT_EQ(DifferenceOf(whole, whole), "");
  EXPECT_EQ(
      DifferenceOf(Content({{"a", 1, "xx"}, {"b", 2, "y!"}, {"c", 3, "zz"}}),
                   whole),
      "b differs");
  EXPECT_EQ(
      DifferenceOf(Content({{"a", 1, "xx"}, {"b", 7, "y!"}, {"c", 3, "z!"}}),
                   whole),
      "b has 7 bytes, not 2, and 1 other");
  EXPECT_EQ(DifferenceOf(Content({{"b", 2, "yy"}}), whole),
            "a is missing, and 1 other");
  EXPECT_EQ(DifferenceOf(whole, Content({})),
            "a should not be there, and 2 others");
}

TEST(DifferenceOfTest, WhatIsNotKnownDoesNotDiffer) {
  const ModelContent whole = Content({{"a", 1, "xx"}, {"b", 2, "yy"}});
  EXPECT_EQ(DifferenceOf(Content({{"a", 1, ""}, {"b", 2, "yy"}}), whole), "");
  EXPECT_EQ(DifferenceOf(Content({{"a", 1, ""}, {"b", 2, "y!"}}), whole),
            "b differs");
  // Sizes and times are not comparable with hashes, only among themselves.
  EXPECT_EQ(DifferenceOf(Content({{"a", 1, "1-5"}, {"b", 2, "yy"}}), whole),
            "");
  // Nor are hashes of earlier versions.
  const std::string now = PieceList(0, {}).FileHash();
  EXPECT_EQ(DifferenceOf(Content({{"a", 1, now}, {"b", 2, "yy"}}), whole), "");
  EXPECT_EQ(DifferenceOf(Content({{"a", 1, now}}),
                         Content({{"a", 1, PieceList(1, {{}}).FileHash()}})),
            "a differs");
  EXPECT_EQ(
      DifferenceOf(Content({{"a", 1, "1-5"}}), Content({{"a", 1, "1-6"}})),
      "a differs");
  EXPECT_FALSE(Content({{"a", 1, ""}}).known());
  EXPECT_FALSE(Content({}).known());
  EXPECT_TRUE(whole.known());
}

// -- Hashes and their cache.

class ContentHashesTest : public ::testing::Test {
 protected:
  // Files that were just written count as settled.
  ContentHashes Open() { return ContentHashes(cache_, absl::ZeroDuration()); }

  std::string Hash(ContentHashes& hashes, const std::string& path) {
    read_ = 0;
    const int fd = open(path.c_str(), O_RDONLY);
    const absl::StatusOr<ContentHashes::File> file =
        hashes.Of(path, fd, [this](uint64_t bytes) {
          read_ += bytes;
          return absl::OkStatus();
        });
    close(fd);
    EXPECT_TRUE(file.ok()) << file.status();
    if (!file.ok()) return "";
    EXPECT_EQ(file->pieces->FileHash(), file->hash);
    return file->hash;
  }
  // The hash of a file of one piece.
  static std::string HashOf(const std::string& bytes) {
    return PieceList(bytes.size(), {HashPiece(bytes)}).FileHash();
  }

  TempDir dir_;
  const std::string cache_ = dir_.path() / "cache" / "content-hashes";
  const std::string file_ = dir_.path() / "a file";
  uint64_t read_ = 0;
};

TEST_F(ContentHashesTest, RemembersOverProcesses) {
  WriteFile(file_, "some bytes");
  ContentHashes first = Open();
  const std::string hash = Hash(first, file_);
  EXPECT_EQ(hash, HashOf("some bytes"));
  EXPECT_EQ(read_, 10u);
  EXPECT_EQ(Hash(first, file_), hash);
  EXPECT_EQ(read_, 0u);
  ContentHashes second = Open();
  EXPECT_EQ(Hash(second, file_), hash);
  EXPECT_EQ(read_, 0u);
}

TEST_F(ContentHashesTest, NoticesAChangeThatKeepsSizeAndTime) {
  WriteFile(file_, "some bytes");
  ContentHashes hashes = Open();
  const std::string hash = Hash(hashes, file_);
  struct stat before;
  ASSERT_EQ(stat(file_.c_str(), &before), 0);
  const auto put_back = [&] {
    const timespec times[2] = {before.st_atim, before.st_mtim};
    ASSERT_EQ(utimensat(AT_FDCWD, file_.c_str(), times, 0), 0);
  };
  // The file is changed in place: only the inode's change time, which can't be
  // set, shows it. It may have a coarse resolution.
  struct stat after = before;
  while (after.st_ctim.tv_sec == before.st_ctim.tv_sec &&
         after.st_ctim.tv_nsec == before.st_ctim.tv_nsec) {
    WriteFile(file_, "some BYTES");
    put_back();
    ASSERT_EQ(stat(file_.c_str(), &after), 0);
  }
  EXPECT_NE(Hash(hashes, file_), hash);
  // Another file replaces it.
  const std::string other = dir_.path() / "other";
  WriteFile(other, "SOME bytes");
  std::filesystem::rename(other, file_);
  put_back();
  EXPECT_EQ(Hash(hashes, file_), HashOf("SOME bytes"));
}

TEST_F(ContentHashesTest, AHashThatWasWrongIsForgottenByAll) {
  WriteFile(file_, "some bytes");
  ContentHashes hashes = Open();
  const std::string hash = Hash(hashes, file_);
  hashes.Forget(file_, -1);
  EXPECT_EQ(Hash(hashes, file_), hash);
  EXPECT_EQ(read_, 10u);
  Open().Forget(file_, -1);
  ContentHashes other = Open();
  EXPECT_EQ(Hash(other, file_), hash);
  EXPECT_EQ(read_, 10u);
  ContentHashes last = Open();
  EXPECT_EQ(Hash(last, file_), hash);
  EXPECT_EQ(read_, 0u);
}

TEST_F(ContentHashesTest, AFileThatWasJustWrittenIsNotRemembered) {
  WriteFile(file_, "some bytes");
  ContentHashes hashes(cache_, absl::Hours(1));
  Hash(hashes, file_);
  Hash(hashes, file_);
  EXPECT_EQ(read_, 10u);
  EXPECT_FALSE(std::filesystem::exists(cache_));
}

TEST_F(ContentHashesTest, ADamagedCacheOnlyCostsTime) {
  WriteFile(file_, "some bytes");
  {
    ContentHashes hashes = Open();
    Hash(hashes, file_);
  }
  std::string text;
  {
    std::ifstream in(cache_);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  for (size_t i = 0; i < text.size(); ++i) {
    // The cache is cut there, or has one wrong byte.
    for (const bool cut : {true, false}) {
      std::string damaged = cut ? text.substr(0, i) : text;
      if (!cut) damaged[i] ^= 1;
      WriteFile(cache_, damaged);
      ContentHashes hashes = Open();
      EXPECT_EQ(Hash(hashes, file_), HashOf("some bytes")) << i;
      // Lines behind the damage count.
      ContentHashes next = Open();
      Hash(next, file_);
      EXPECT_EQ(read_, 0u) << i;
    }
  }
}

TEST_F(ContentHashesTest, AMissingListOfPiecesOnlyCostsTime) {
  WriteFile(file_, "some bytes");
  ContentHashes first = Open();
  const std::string hash = Hash(first, file_);
  const std::string list = cache_ + ".pieces/" + hash;
  ASSERT_TRUE(std::filesystem::exists(list));
  for (const char* damage : {"", "0123456789abcdef", "short"}) {
    WriteFile(list, damage);
    ContentHashes hashes = Open();
    EXPECT_EQ(Hash(hashes, file_), hash);
    EXPECT_EQ(read_, 10u) << damage;
    ContentHashes next = Open();
    EXPECT_EQ(Hash(next, file_), hash);
    EXPECT_EQ(read_, 0u) << damage;
  }
}

TEST_F(ContentHashesTest, PiecesAreThoseOfTheFileWhateverIsReadAtOnce) {
  std::string bytes(5 * kPieceBytes + 3, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(i * 31 >> 7);
  }
  WriteFile(file_, bytes);
  ContentHashes hashes = Open();
  Hash(hashes, file_);
  const int fd = open(file_.c_str(), O_RDONLY);
  const auto known = hashes.Known(file_, fd);
  close(fd);
  ASSERT_TRUE(known.has_value());
  ASSERT_EQ(known->pieces->size(), 6u);
  for (uint64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(known->pieces->hash(i),
              HashPiece(bytes.substr(i * kPieceBytes, kPieceBytes)));
  }
}

TEST_F(ContentHashesTest, EndsWhenToldTo) {
  WriteFile(file_, "some bytes");
  ContentHashes hashes = Open();
  const int fd = open(file_.c_str(), O_RDONLY);
  EXPECT_EQ(hashes
                .Of(file_, fd,
                    [](uint64_t) { return absl::CancelledError("enough"); })
                .status()
                .code(),
            absl::StatusCode::kCancelled);
  // The file changes while it is read.
  EXPECT_EQ(hashes
                .Of(file_, fd,
                    [&](uint64_t) {
                      WriteFile(file_, "longer than before");
                      return absl::OkStatus();
                    })
                .status()
                .code(),
            absl::StatusCode::kAborted);
  close(fd);
}

// -- A directory.

class ContentCheckTest : public ::testing::Test {
 protected:
  ContentCheckTest() {
    WriteFile(dir_.path() / "config.json",
              R"({"model_type":"opt","vocab_size":8,"hidden_size":4,)"
              R"("ffn_dim":8,"num_hidden_layers":1,"num_attention_heads":1,)"
              R"("max_position_embeddings":8,"do_layer_norm_before":true,)"
              R"("activation_function":"relu","word_embed_proj_dim":4})");
    WriteShard("1", 1);
    WriteShard("2", 2);
    WriteFile(
        dir_.path() / "model.safetensors.index.json",
        R"({"weight_map":{"t1":"m-1.safetensors","t2":"m-2.safetensors"}})");
  }

  void WriteShard(const std::string& number, float value) {
    WriteFile(
        dir_.path() / ("m-" + number + ".safetensors"),
        SafetensorsOf(
            {{"t" + number, "F32", {1}, BytesOf(std::vector<float>{value})}}));
  }

  std::unique_ptr<ContentCheck> Start(bool hash = true, bool dummy = false) {
    auto model = ModelDir::Open(dir_.path());
    EXPECT_TRUE(model.ok()) << model.status();
    auto check = ContentCheck::Start(
        {.model = std::shared_ptr<const ModelDir>(*std::move(model)),
         .dummy_weights = dummy,
         .hash = hash,
         .cache_file = dir_.path() / "hashes"});
    EXPECT_TRUE(check.ok()) << check.status();
    return *std::move(check);
  }

  static std::vector<std::string> Names(const ModelContent& content) {
    std::vector<std::string> names;
    for (const auto& file : content.files) names.push_back(file.name);
    return names;
  }

  static ContentCheck::State Known(ContentCheck& check) {
    const ContentCheck::State state = check.WaitKnown(absl::Seconds(60));
    EXPECT_TRUE(state.known()) << state.error;
    return state;
  }

  TempDir dir_;
};

TEST_F(ContentCheckTest, TellsAllFiles) {
  auto check = Start();
  const ContentCheck::State state = Known(*check);
  EXPECT_THAT(Names(state.content),
              ::testing::ElementsAre("config.json", "m-1.safetensors",
                                     "m-2.safetensors"));
  EXPECT_EQ(state.hashed_bytes, state.bytes_to_hash);
  EXPECT_TRUE(check->Verify().ok());
  // One byte of a file changes, but not its size.
  WriteShard("2", 3);
  auto other = Start();
  EXPECT_EQ(DifferenceOf(Known(*other).content, state.content),
            "m-2.safetensors differs");
  EXPECT_EQ(Known(*other).fingerprint, state.fingerprint);
}

TEST_F(ContentCheckTest, AFileThatChangesIsHashedAnew) {
  auto check = Start();
  const ContentCheck::State before = Known(*check);
  check->Refresh();
  EXPECT_EQ(check->state().content, before.content);
  WriteShard("1", 4);
  EXPECT_EQ(check->Verify().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(check->state().outdated);
  // Even a restored file is outdated, as it may have been read meanwhile.
  EXPECT_EQ(check->Verify().code(), absl::StatusCode::kUnavailable);
  check->Refresh();
  const ContentCheck::State after = Known(*check);
  EXPECT_FALSE(after.outdated);
  EXPECT_EQ(DifferenceOf(after.content, before.content),
            "m-1.safetensors differs");
  EXPECT_TRUE(check->Verify().ok());
}

TEST_F(ContentCheckTest, AnIndexThatNamesAnotherCopyIsNoticed) {
  WriteFile(
      dir_.path() / "m-2.safetensors",
      SafetensorsOf({{"t1", "F32", {1}, BytesOf(std::vector<float>{7})},
                     {"t2", "F32", {1}, BytesOf(std::vector<float>{2})}}));
  auto check = Start();
  const ContentCheck::State before = Known(*check);
  EXPECT_EQ(before.content.copies, R"({"m-2.safetensors":["t1"]})");
  WriteFile(dir_.path() / "model.safetensors.index.json",
            R"({"weight_map":{"t1":"m-2.safetensors","x":"m-1.safetensors"}})");
  EXPECT_EQ(check->Verify().code(), absl::StatusCode::kUnavailable);
  check->Refresh();
  const ContentCheck::State after = Known(*check);
  EXPECT_EQ(DifferenceOf(after.content, before.content),
            "model.safetensors.index.json names other files for some tensors");
  EXPECT_NE(after.fingerprint, before.fingerprint);
}

TEST_F(ContentCheckTest, AFileThatIsDistrustedIsHashedAnew) {
  auto check = Start();
  const ContentCheck::State before = Known(*check);
  EXPECT_EQ(check->AllPieces().size(), 2u);
  check->Distrust();
  EXPECT_TRUE(check->state().outdated);
  EXPECT_EQ(check->Verify().code(), absl::StatusCode::kUnavailable);
  check->Refresh();
  const ContentCheck::State after = Known(*check);
  EXPECT_EQ(after.content, before.content);
  EXPECT_TRUE(check->Verify().ok());
}

TEST_F(ContentCheckTest, FilesThatCannotBeReadAreTriedAgain) {
  auto check = Start();
  const ContentCheck::State before = Known(*check);
  std::filesystem::remove(dir_.path() / "m-1.safetensors");
  check->Refresh();
  const ContentCheck::State gone = check->WaitKnown(absl::Seconds(60));
  EXPECT_FALSE(gone.known());
  EXPECT_THAT(gone.error.ToString(), HasSubstr("m-1.safetensors"));
  WriteShard("1", 1);
  check->Refresh();
  EXPECT_EQ(Known(*check).content, before.content);
}

TEST_F(ContentCheckTest, SizesAndTimesStandForHashesWhereThatIsEnough) {
  auto check = Start(/*hash=*/false);
  const ContentCheck::State state = Known(*check);
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "hashes"));
  auto again = Start(/*hash=*/false);
  EXPECT_EQ(Known(*again).content, state.content);
}

TEST_F(ContentCheckTest, OfDummyWeightsOnlyTheConfigurationCounts) {
  auto check = Start(/*hash=*/true, /*dummy=*/true);
  EXPECT_THAT(Names(Known(*check).content),
              ::testing::ElementsAre("config.json"));
}

}  // namespace
}  // namespace sluice
