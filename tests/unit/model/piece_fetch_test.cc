#include "runtime/model/pieces/piece_fetch.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "gmock/gmock.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/model/pieces_testing.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kPieces = 40;

// A source of one file, with faults.
class FakeSource : public PieceSource {
 public:
  FakeSource(std::string name, std::string bytes)
      : name_(std::move(name)), bytes_(std::move(bytes)) {}

  std::set<uint64_t> absent;
  std::map<uint64_t, int> wrong;  // pieces, and how often they come wrong
  int breaks = 0;                 // calls that break after a piece
  int refuses = 0;                // calls that are refused at once
  bool useless = false;
  bool hangs = false;  // until the call is cancelled
  std::function<void()> on_read;

  std::string name() const override { return name_; }

  absl::StatusOr<PieceListPtr> List(const PiecedFile&) override {
    if (useless) return absl::FailedPreconditionError("another model");
    return ListOf(bytes_);
  }

  absl::Status Read(const PiecedFile& file, uint64_t first, uint64_t count,
                    Take take) override {
    EXPECT_EQ(file.hash, ListOf(bytes_)->FileHash());
    if (on_read) on_read();
    bool break_it;
    {
      MutexLock lock(&mu_);
      if (useless) return absl::FailedPreconditionError("another model");
      if (refuses > 0) {
        --refuses;
        return absl::UnavailableError("nobody there");
      }
      break_it = breaks > 0 && breaks-- > 0;
      while (hangs && !cancelled_) changed_.Wait(&mu_);
      if (cancelled_) return absl::UnavailableError("nothing came");
    }
    for (uint64_t i = first; i < first + count; ++i) {
      if (break_it && i > first) return absl::UnavailableError("it broke");
      std::string piece;
      {
        MutexLock lock(&mu_);
        if (absent.contains(i)) return absl::NotFoundError("not here");
        piece = std::string(PieceOf(bytes_, i));
        if (auto it = wrong.find(i); it != wrong.end() && it->second-- > 0) {
          piece[piece.size() / 2] ^= 1;
        }
        ++sent[i];
      }
      const absl::string_view parts[] = {absl::string_view(piece).substr(0, 9),
                                         absl::string_view(piece).substr(9)};
      SLUICE_RETURN_IF_ERROR(take(i, parts));
    }
    return absl::OkStatus();
  }

  void CancelStalled(absl::Duration silence) override {
    MutexLock lock(&mu_);
    if (!hangs || silence > absl::Milliseconds(1)) return;
    cancelled_ = true;
    changed_.NotifyAll();
  }

  std::map<uint64_t, int> sent;

 private:
  const std::string name_;
  const std::string bytes_;
  Mutex mu_;
  CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

class PieceFetchTest : public ::testing::Test {
 protected:
  PieceFetchTest() {
    cache_ = *ModelCache::Create({.dir = dir_.path()});
    model_ = *cache_->Open(ContentWith("{}", bytes_), "{}");
    options_.model = model_.get();
    options_.threads = 3;
    options_.first_retry = absl::Milliseconds(1);
    options_.on_fetched = [this](size_t source, uint64_t bytes) {
      MutexLock lock(&mu_);
      fetched_[source] += bytes;
    };
    options_.on_refused = [this](size_t) { ++refused_; };
  }

  std::shared_ptr<FakeSource> AddSource(const std::string& name) {
    auto source = std::make_shared<FakeSource>(name, bytes_);
    options_.sources.push_back(source);
    return source;
  }
  absl::Status Fetch(const PiecesByFile& wanted) {
    SLUICE_RETURN_IF_ERROR(FetchLists(options_, {kFile}));
    return FetchPieces(options_, wanted);
  }
  static PiecesByFile All() {
    std::vector<uint64_t> pieces;
    for (uint64_t i = 0; i < kPieces; ++i) pieces.push_back(i);
    return Pieces(std::move(pieces));
  }
  void ExpectPresent(const PiecesByFile& wanted) {
    const auto file = model_->Find(kFile);
    ASSERT_NE(file, nullptr);
    std::string read(kPieceBytes, '\0');
    for (const uint64_t piece : wanted.at(kFile)) {
      ASSERT_TRUE(file->Read(piece, read.data()).ok()) << piece;
      EXPECT_EQ(absl::string_view(read).substr(0, file->list().bytes(piece)),
                PieceOf(bytes_, piece));
    }
  }
  uint64_t fetched() {
    MutexLock lock(&mu_);
    uint64_t sum = 0;
    for (const auto& [source, bytes] : fetched_) sum += bytes;
    return sum;
  }

  TempDir dir_;
  const std::string bytes_ = RandomBytes((kPieces - 1) * kPieceBytes + 77, 3);
  std::unique_ptr<ModelCache> cache_;
  std::shared_ptr<CachedModel> model_;
  FetchOptions options_;
  Mutex mu_;
  std::map<size_t, uint64_t> fetched_;
  std::atomic<int> refused_{0};
};

TEST_F(PieceFetchTest, FetchesWhatIsWantedAndNoMore) {
  const auto source = AddSource("a");
  uint64_t done = 0, total = 0;
  options_.progress = [&](uint64_t d, uint64_t t) {
    EXPECT_LE(d, t);
    done = d;
    total = t;
  };
  const PiecesByFile wanted = Pieces({0, 3, 4, 5, 30, kPieces - 1});
  ASSERT_TRUE(Fetch(wanted).ok());
  ExpectPresent(wanted);
  EXPECT_EQ(source->sent.size(), 6u);
  EXPECT_EQ(fetched(), 5 * kPieceBytes + 77);
  EXPECT_EQ(done, fetched());
  EXPECT_EQ(total, fetched());
  // The rest only.
  ASSERT_TRUE(Fetch(All()).ok());
  ExpectPresent(All());
  EXPECT_EQ(fetched(), bytes_.size());
  for (const auto& [piece, times] : source->sent) EXPECT_EQ(times, 1) << piece;
}

TEST_F(PieceFetchTest, ABrokenCallGoesOnWhereItWas) {
  const auto source = AddSource("a");
  source->breaks = 5;
  source->refuses = 2;
  ASSERT_TRUE(Fetch(All()).ok());
  ExpectPresent(All());
  EXPECT_EQ(fetched(), bytes_.size());
  for (const auto& [piece, times] : source->sent) EXPECT_EQ(times, 1) << piece;
}

TEST_F(PieceFetchTest, AWrongPieceComesFromAnotherSource) {
  const auto bad = AddSource("bad");
  AddSource("good");
  for (uint64_t i = 0; i < kPieces; ++i) bad->wrong[i] = 1000;
  ASSERT_TRUE(Fetch(All()).ok());
  ExpectPresent(All());
  EXPECT_EQ(fetched_[0], 0u);
  EXPECT_EQ(fetched_[1], bytes_.size());
  EXPECT_GE(refused_, 1);
  EXPECT_LE(refused_, kMaxBadPieces + options_.threads);
}

TEST_F(PieceFetchTest, AWrongPieceComesAgainFromTheOnlySource) {
  const auto source = AddSource("a");
  source->wrong[17] = 2;
  ASSERT_TRUE(Fetch(All()).ok());
  ExpectPresent(All());
  EXPECT_EQ(refused_, 2);
  EXPECT_EQ(fetched(), bytes_.size());
}

TEST_F(PieceFetchTest, APieceThatNobodyHasRightEndsTheFetch) {
  const auto one = AddSource("one");
  const auto two = AddSource("two");
  one->wrong[17] = two->wrong[17] = 1000;
  const absl::Status status = Fetch(All());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("piece 17 of model.safetensors"),
            HasSubstr("one: sent 3 pieces"), HasSubstr("two: sent 3 pieces")));
  EXPECT_EQ(refused_, 2 * kMaxBadPieces);
}

TEST_F(PieceFetchTest, PartsComeFromWhoHasThem) {
  const auto one = AddSource("one");
  const auto two = AddSource("two");
  for (uint64_t i = 0; i < kPieces; ++i)
    (i % 7 < 3 ? one : two)->absent.insert(i);
  ASSERT_TRUE(Fetch(All()).ok());
  ExpectPresent(All());
  EXPECT_EQ(fetched(), bytes_.size());
  EXPECT_GT(fetched_[0], 0u);
  EXPECT_GT(fetched_[1], 0u);
}

TEST_F(PieceFetchTest, WhoHasWholeFilesIsAskedFirst) {
  AddSource("whole");
  const auto part = AddSource("part");
  options_.num_full = 1;
  ASSERT_TRUE(Fetch(All()).ok());
  EXPECT_TRUE(part->sent.empty());
}

TEST_F(PieceFetchTest, WithoutASourceTheErrorSaysWhatToDo) {
  const absl::Status none = Fetch(All());
  EXPECT_EQ(none.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(none.message()),
              HasSubstr("start a worker with --model"));
  const auto source = AddSource("a");
  ASSERT_TRUE(FetchLists(options_, {kFile}).ok());
  source->useless = true;
  const absl::Status status = FetchPieces(options_, All());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a: another model"));
}

TEST_F(PieceFetchTest, ASourceThatIsGoneForGoodIsGivenUp) {
  const auto source = AddSource("a");
  ASSERT_TRUE(FetchLists(options_, {kFile}).ok());
  source->refuses = 1 << 30;
  options_.patience = absl::Milliseconds(20);
  const absl::Status status = FetchPieces(options_, All());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a: nobody there"));
}

TEST_F(PieceFetchTest, ASourceThatHangsIsGivenUpForAnother) {
  const auto source = AddSource("hangs");
  source->hangs = true;
  source->breaks = 0;
  AddSource("good");
  options_.max_silence = absl::Milliseconds(1);
  ASSERT_TRUE(Fetch(All()).ok());
  ExpectPresent(All());
}

TEST_F(PieceFetchTest, EndsAtOnceWhenItIsCancelled) {
  const auto source = AddSource("hangs");
  ASSERT_TRUE(FetchLists(options_, {kFile}).ok());
  source->hangs = true;
  std::atomic<bool> cancelled{false};
  options_.cancelled = &cancelled;
  source->on_read = [&] { cancelled = true; };
  EXPECT_EQ(FetchPieces(options_, All()).code(), absl::StatusCode::kCancelled);
}

TEST_F(PieceFetchTest, RecordedPiecesAreCheckedAndNotFetched) {
  const auto source = AddSource("a");
  ASSERT_TRUE(Fetch(Pieces({1, 2, 3})).ok());
  // Another life: nothing was settled, and a piece is damaged.
  const std::string path = model_->Find(kFile)->path();
  model_.reset();
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(2 * kPieceBytes + 9));
    file.put(static_cast<char>(bytes_[2 * kPieceBytes + 9] ^ 1));
  }
  model_ = *cache_->Open(ContentWith("{}", bytes_), "{}");
  options_.model = model_.get();
  source->sent.clear();
  ASSERT_TRUE(Fetch(Pieces({1, 2, 3, 4})).ok());
  ExpectPresent(Pieces({1, 2, 3, 4}));
  EXPECT_EQ(source->sent, (std::map<uint64_t, int>{{2, 1}, {4, 1}}));
}

}  // namespace
}  // namespace sluice
