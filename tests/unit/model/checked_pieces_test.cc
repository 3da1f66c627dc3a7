// What is handed out is what was hashed, whatever becomes of the file.

#include "runtime/model/checkpoint/checked_pieces.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "gmock/gmock.h"
#include "tests/unit/model/pieces_testing.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

// A file in memory, which may be changed after its pieces were hashed.
class ChangingFile : public PieceReader {
 public:
  explicit ChangingFile(const std::string& bytes)
      : list_(ListOf(bytes)), bytes_(bytes) {}
  const PieceList& list() const override { return *list_; }
  const std::string& path() const override { return path_; }
  absl::Status Read(uint64_t piece, char* to) override {
    ++reads;
    MutexLock lock(&mu_);
    if (bytes_.size() <= piece * kPieceBytes) {
      return absl::NotFoundError("it was cut short");
    }
    bytes_.copy(to, kPieceBytes, piece * kPieceBytes);
    return absl::OkStatus();
  }
  void Change(uint64_t place) {
    MutexLock lock(&mu_);
    bytes_[place] ^= 1;
  }
  void Cut(uint64_t bytes) {
    MutexLock lock(&mu_);
    bytes_.resize(bytes);
  }

  std::atomic<int> reads{0};

 private:
  const std::string path_ = "a/model.safetensors";
  const PieceListPtr list_;
  Mutex mu_;
  std::string bytes_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<std::string> Text(CheckedPieces& pieces, PieceReader& file,
                                 uint64_t begin, uint64_t end) {
  std::string text;
  const absl::Status status = pieces.Read(
      file, begin, end, end,
      [&](absl::string_view part) { text.append(part.data(), part.size()); });
  if (!status.ok()) return status;
  return text;
}

TEST(CheckedPiecesTest, RangesAreThoseOfTheFile) {
  const std::string bytes = RandomBytes(3 * kPieceBytes + 100, 1);
  ChangingFile file(bytes);
  CheckedPieces pieces;
  for (const auto& [begin, end] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 0},
           {0, 1},
           {5, kPieceBytes},
           {kPieceBytes - 1, kPieceBytes + 1},
           {10, 3 * kPieceBytes + 7},
           {3 * kPieceBytes, bytes.size()},
           {0, bytes.size()}}) {
    const auto text = Text(pieces, file, begin, end);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, bytes.substr(begin, end - begin)) << begin;
  }
  EXPECT_EQ(Text(pieces, file, 0, bytes.size() + 1).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(CheckedPiecesTest, AChangedPieceIsAnErrorThatNamesIt) {
  const std::string bytes = RandomBytes(4 * kPieceBytes, 2);
  ChangingFile file(bytes);
  file.Change(2 * kPieceBytes + 77);
  file.Cut(3 * kPieceBytes);
  CheckedPieces pieces;
  EXPECT_TRUE(Text(pieces, file, 0, 2 * kPieceBytes).ok());
  const auto changed = Text(pieces, file, kPieceBytes, 2 * kPieceBytes + 1);
  EXPECT_EQ(changed.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(changed.status().message()),
              HasSubstr(absl::StrCat("a/model.safetensors: bytes ",
                                     2 * kPieceBytes, " to ", 3 * kPieceBytes,
                                     " are not those that were hashed")));
  EXPECT_EQ(Text(pieces, file, 3 * kPieceBytes, 4 * kPieceBytes).status(),
            absl::DataLossError("it was cut short"));
  // A piece that is right again is read again.
  file.Change(2 * kPieceBytes + 77);
  EXPECT_TRUE(Text(pieces, file, 0, 3 * kPieceBytes).ok());
}

TEST(CheckedPiecesTest, APieceThatWasHashedStaysAsItWas) {
  const std::string bytes = RandomBytes(kPieceBytes, 3);
  ChangingFile file(bytes);
  CheckedPieces pieces;
  std::string text;
  const absl::Status status = pieces.Read(
      file, 0, bytes.size(), bytes.size(), [&](absl::string_view part) {
        file.Change(9);  // between the hash and the use
        text.append(part.data(), part.size());
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(text, bytes);
}

TEST(CheckedPiecesTest, ThreadsThatGoThroughAFileReadItOnce) {
  constexpr int kPieces = 40;
  constexpr uint64_t kStep = kPieceBytes / 4 + 1000;
  const std::string bytes = RandomBytes(kPieces * kPieceBytes, 4);
  ChangingFile file(bytes);
  CheckedPieces pieces;
  std::atomic<uint64_t> next{0};
  std::atomic<int> wrong{0};
  {
    std::vector<Thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back("reader", [&] {
        for (uint64_t begin; (begin = kStep * next++) < bytes.size();) {
          const uint64_t end = std::min<uint64_t>(begin + kStep, bytes.size());
          std::string text;
          const absl::Status status = pieces.Read(
              file, begin, end, bytes.size(), [&](absl::string_view part) {
                text.append(part.data(), part.size());
              });
          if (!status.ok() || text != bytes.substr(begin, end - begin)) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(file.reads, kPieces);
}

TEST(CheckedPiecesTest, WhatIsReadAheadMayBeMissing) {
  const std::string bytes = RandomBytes(8 * kPieceBytes, 5);
  ChangingFile file(bytes);
  file.Cut(4 * kPieceBytes);
  CheckedPieces pieces;
  std::vector<Thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back("reader", [&] {
      const absl::Status status = pieces.Read(
          file, 0, 4 * kPieceBytes, bytes.size(), [](absl::string_view) {});
      if (status.ok()) ++good;
    });
  }
  threads.clear();
  EXPECT_EQ(good, 4);
}

}  // namespace
}  // namespace sluice
