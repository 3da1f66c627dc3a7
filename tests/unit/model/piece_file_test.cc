#include "runtime/model/pieces/piece_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/model/pieces_testing.h"

namespace sluice {
namespace {

using State = PieceFile::State;

// -- Lists.

TEST(PieceListTest, TheFilesHashCommitsToThePieces) {
  const std::string bytes = RandomBytes(2 * kPieceBytes + 5, 1);
  const PieceListPtr list = ListOf(bytes);
  EXPECT_EQ(list->size(), 3u);
  EXPECT_EQ(list->bytes(0), kPieceBytes);
  EXPECT_EQ(list->bytes(2), 5u);
  EXPECT_TRUE(IsPieceListHash(list->FileHash()));
  const auto again = PieceList::Create(bytes.size(), list->packed());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->FileHash(), list->FileHash());
  std::string other = bytes;
  other[kPieceBytes + 7] ^= 1;
  EXPECT_NE(ListOf(other)->FileHash(), list->FileHash());
  // The same pieces, but a shorter last one.
  EXPECT_NE(PieceList::Create(bytes.size() - 1, list->packed())->FileHash(),
            list->FileHash());
}

TEST(PieceListTest, NumbersFromOutsideAreChecked) {
  EXPECT_FALSE(PieceList::Create(kPieceBytes + 1, "0123456789abcdef").ok());
  EXPECT_FALSE(PieceList::Create(1, "").ok());
  EXPECT_FALSE(PieceList::Create(UINT64_MAX, "").ok());
  EXPECT_TRUE(PieceList::Create(0, "").ok());
  EXPECT_FALSE(IsPieceListHash("p123"));
  EXPECT_FALSE(IsPieceListHash("p0123456789abcdef0123456789abcdeF"));
  EXPECT_FALSE(IsPieceListHash("x0123456789abcdef0123456789abcdef"));
}

// -- Files.

class PieceFileTest : public ::testing::Test {
 protected:
  std::shared_ptr<PieceFile> Open(bool only_user = true) {
    auto file = PieceFile::Open(path_, list_, only_user);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  void Put(PieceFile& file, uint64_t piece) {
    const absl::string_view bytes = PieceOf(bytes_, piece);
    // In parts, as it comes from a connection.
    const std::vector<absl::string_view> parts = {
        bytes.substr(0, 1), "", bytes.substr(1, 1000),
        bytes.substr(std::min<size_t>(bytes.size(), 1001))};
    EXPECT_TRUE(file.Write(piece, parts).ok());
  }
  std::vector<State> States(const PieceFile& file) {
    std::vector<State> states;
    for (uint64_t i = 0; i < list_->size(); ++i) {
      states.push_back(file.state(i));
    }
    return states;
  }
  // Changes a byte of the file, without a trace in its size.
  void Damage(uint64_t offset) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(bytes_[offset] ^ 1));
  }

  TempDir dir_;
  const std::string path_ = dir_ / "model.safetensors";
  const std::string bytes_ = RandomBytes(3 * kPieceBytes + 100, 7);
  const PieceListPtr list_ = ListOf(bytes_);
};

TEST_F(PieceFileTest, HoldsThePiecesThatWereWritten) {
  const auto file = Open();
  Put(*file, 1);
  Put(*file, 3);
  EXPECT_THAT(States(*file),
              ::testing::ElementsAre(State::kAbsent, State::kPresent,
                                     State::kAbsent, State::kPresent));
  EXPECT_EQ(file->recorded_bytes(), kPieceBytes + 100);
  std::string read(kPieceBytes, '\0');
  ASSERT_TRUE(file->Read(1, read.data()).ok());
  EXPECT_EQ(read, PieceOf(bytes_, 1));
  EXPECT_EQ(file->Read(0, read.data()).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(file->Read(99, read.data()).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::filesystem::file_size(path_), bytes_.size());
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_LT(static_cast<uint64_t>(info.st_blocks) * 512, 2 * kPieceBytes);
}

TEST_F(PieceFileTest, WhatDidNotSettleIsCheckedAfterARestart) {
  {
    const auto file = Open();
    Put(*file, 0);
    Put(*file, 1);
  }
  const auto file = Open();
  EXPECT_EQ(file->state(0), State::kRecorded);
  std::string read(kPieceBytes, '\0');
  EXPECT_EQ(file->Read(0, read.data()).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*file->Check(0), true);
  EXPECT_TRUE(file->Read(0, read.data()).ok());
}

TEST_F(PieceFileTest, WhatSettledCountsAtOnceUnlessTheFileChanged) {
  {
    const auto file = Open();
    Put(*file, 0);
    Put(*file, 1);
    ASSERT_TRUE(file->Settle().ok());
  }
  {
    const auto file = Open();
    EXPECT_EQ(file->state(0), State::kPresent);
    EXPECT_EQ(file->state(1), State::kPresent);
  }
  Damage(kPieceBytes + 17);
  const auto file = Open();
  EXPECT_EQ(file->state(0), State::kRecorded);
  EXPECT_EQ(*file->Check(0), true);
  EXPECT_EQ(*file->Check(1), false);
  EXPECT_EQ(file->state(1), State::kAbsent);
  EXPECT_EQ(file->recorded_bytes(), kPieceBytes);
}

TEST_F(PieceFileTest, PiecesAfterSettlingAreCheckedEvenIfTheStampIsTheOld) {
  {
    const auto file = Open();
    Put(*file, 0);
    ASSERT_TRUE(file->Settle().ok());
  }
  // The record of a piece came to disk, but neither its data nor the file's
  // times did, as after a loss of power.
  const std::string log = path_ + ".present";
  std::string records;
  {
    TempDir other;
    auto twin = PieceFile::Open(other / "twin", list_, true);
    const absl::string_view two[] = {PieceOf(bytes_, 2)};
    ASSERT_TRUE((*twin)->Write(2, two).ok());
    std::ifstream in(other / "twin.present", std::ios::binary);
    records.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::ofstream(log, std::ios::binary | std::ios::app) << records;
  const auto file = Open(/*only_user=*/false);
  EXPECT_EQ(file->state(0), State::kPresent);
  EXPECT_EQ(file->state(2), State::kRecorded);
  EXPECT_EQ(*file->Check(2), false);
}

TEST_F(PieceFileTest, ACrashAtAnyByteOfTheRecordCostsNoMoreThanPieces) {
  {
    const auto file = Open();
    for (uint64_t i = 0; i < list_->size(); ++i) Put(*file, i);
  }
  const std::string log = path_ + ".present";
  std::string records;
  {
    std::ifstream in(log, std::ios::binary);
    records.assign(std::istreambuf_iterator<char>(in), {});
  }
  ASSERT_EQ(records.size(), 8 * list_->size());
  for (size_t cut = 0; cut <= records.size(); ++cut) {
    for (const bool flip : {false, true}) {
      std::string left = flip ? records : records.substr(0, cut);
      if (flip && cut == records.size()) continue;
      if (flip) left[cut] ^= 1;
      std::ofstream(log, std::ios::binary | std::ios::trunc) << left;
      const auto file = Open(/*only_user=*/false);
      size_t recorded = 0;
      for (uint64_t i = 0; i < list_->size(); ++i) {
        if (file->state(i) == State::kRecorded) {
          ++recorded;
          EXPECT_EQ(*file->Check(i), true);
        }
      }
      EXPECT_EQ(recorded, flip ? list_->size() - 1 : cut / 8) << cut;
    }
  }
  // What follows an incomplete record counts again.
  std::ofstream(log, std::ios::binary | std::ios::trunc)
      << records.substr(0, 13);
  {
    const auto file = Open(/*only_user=*/true);
    Put(*file, 3);
  }
  const auto file = Open();
  EXPECT_EQ(file->state(0), State::kRecorded);
  EXPECT_EQ(file->state(1), State::kAbsent);
  EXPECT_EQ(file->state(3), State::kRecorded);
}

TEST_F(PieceFileTest, WhatIsDoubtedIsCheckedAgain) {
  const auto file = Open();
  Put(*file, 0);
  Put(*file, 3);
  Damage(5);
  std::filesystem::resize_file(path_, 3 * kPieceBytes);
  file->Doubt();
  EXPECT_EQ(file->state(0), State::kRecorded);
  EXPECT_EQ(file->state(1), State::kAbsent);
  EXPECT_EQ(std::filesystem::file_size(path_), bytes_.size());
  EXPECT_EQ(*file->Check(0), false);
  EXPECT_EQ(*file->Check(3), false);
  Put(*file, 3);
  EXPECT_EQ(file->state(3), State::kPresent);
}

TEST_F(PieceFileTest, KnowsWhetherItIsStillInPlace) {
  const auto file = Open();
  Put(*file, 0);
  EXPECT_TRUE(file->InPlace());
  std::filesystem::remove(path_ + ".present");
  EXPECT_FALSE(file->InPlace());
  const auto other = Open(/*only_user=*/false);
  EXPECT_TRUE(other->InPlace());
  std::filesystem::rename(path_, path_ + ".old");
  EXPECT_FALSE(other->InPlace());
  // What is open stays what it was.
  std::string read(kPieceBytes, '\0');
  ASSERT_TRUE(file->Read(0, read.data()).ok());
  EXPECT_EQ(read, PieceOf(bytes_, 0));
}

TEST_F(PieceFileTest, TwoUsersSeeEachOthersPieces) {
  const auto one = Open(false);
  const auto two = Open(false);
  Put(*one, 0);
  Put(*two, 1);
  Put(*two, 0);  // both had it under way
  two->Refresh();
  one->Refresh();
  EXPECT_EQ(one->state(1), State::kPresent);
  EXPECT_EQ(two->state(0), State::kPresent);
  EXPECT_EQ(one->recorded_bytes(), 2 * kPieceBytes);
}

TEST_F(PieceFileTest, DroppedPiecesGiveTheirSpaceBack) {
  const auto used = [&] {
    struct stat info;
    EXPECT_EQ(stat(path_.c_str(), &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  };
  const auto file = Open();
  for (uint64_t i = 0; i < 3; ++i) Put(*file, i);
  const std::vector<uint64_t> drop = {0, 2};
  const uint64_t before = used();
  ASSERT_TRUE(file->Drop(drop).ok());
  EXPECT_LE(used() + 2 * kPieceBytes, before);
  EXPECT_EQ(file->state(0), State::kAbsent);
  EXPECT_EQ(file->state(1), State::kPresent);
  const auto again = Open();
  EXPECT_EQ(again->state(0), State::kAbsent);
  EXPECT_EQ(again->state(1), State::kRecorded);
}

TEST_F(PieceFileTest, SpaceSetAsideByACrashIsGivenBack) {
  const auto used = [&] {
    struct stat info;
    EXPECT_EQ(stat(path_.c_str(), &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  };
  {
    const auto file = Open();
    const std::vector<uint64_t> pieces = {0, 1, 3};
    ASSERT_TRUE(file->Reserve(pieces).ok());
    if (used() < 2 * kPieceBytes) GTEST_SKIP() << "no fallocate here";
    Put(*file, 1);
  }
  const auto file = Open(/*only_user=*/true);
  EXPECT_LT(used(), 2 * kPieceBytes);
  EXPECT_EQ(*file->Check(1), true);
}

}  // namespace
}  // namespace sluice
