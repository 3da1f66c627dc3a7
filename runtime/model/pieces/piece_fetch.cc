#include "runtime/model/pieces/piece_fetch.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/content_hash.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "common/threads/deadline.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"

namespace sluice {
namespace {

// The pieces of one call: enough to keep the connection busy, few enough that
// all sources get their share.
constexpr uint64_t kBatchPieces = 16;
constexpr absl::Duration kMaxRetry = absl::Seconds(5);
constexpr absl::Duration kWatchInterval = absl::Milliseconds(20);

PiecedFile IdOf(const CachedModel& model, const std::string& name) {
  for (const ModelContent::File& file : model.content().files) {
    if (file.name == name) return {file.name, file.bytes, file.hash};
  }
  return {name, 0, ""};
}

bool IsHash(std::span<const absl::string_view> parts, const PieceHash& hash) {
  ContentHash content;
  for (const absl::string_view part : parts) content.Add(part);
  return content.Bytes() == absl::string_view(hash.data(), hash.size());
}

// Consecutive pieces of one file.
struct Batch {
  std::shared_ptr<PieceFile> file;
  PiecedFile id;
  uint64_t first = 0;
  uint64_t count = 0;
  bool check = false;       // they are recorded, perhaps damaged
  std::set<size_t> absent;  // the sources that have not the first one
  std::set<size_t> wrong;   // the sources that sent it wrong
};

// Ends the sources' calls that stand still, and all of them once `stop` returns
// true; calls `tick` meanwhile.
class Watcher {
 public:
  Watcher(const FetchOptions& options, std::function<bool()> stop,
          std::function<void()> tick)
      : options_(options),
        stop_(std::move(stop)),
        tick_(std::move(tick)),
        thread_("fetch-watch", [this] { Run(); }) {}
  ~Watcher() {
    {
      MutexLock lock(&mu_);
      over_ = true;
      changed_.NotifyAll();
    }
    thread_.Join();
  }

 private:
  void Run() {
    for (;;) {
      const absl::Duration silence =
          stop_() ? absl::ZeroDuration() : options_.max_silence;
      for (const auto& source : options_.sources) {
        source->CancelStalled(silence);
      }
      tick_();
      MutexLock lock(&mu_);
      if (!over_) changed_.WaitFor(&mu_, kWatchInterval);
      if (over_) return;
    }
  }

  const FetchOptions& options_;
  const std::function<bool()> stop_;
  const std::function<void()> tick_;
  Mutex mu_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

bool IsCancelled(const FetchOptions& options) {
  return options.cancelled != nullptr && *options.cancelled;
}

class Fetch {
 public:
  explicit Fetch(const FetchOptions& options)
      : options_(options), sources_(options.sources.size()) {}

  absl::Status Run(const PiecesByFile& wanted) {
    SLUICE_RETURN_IF_ERROR(Collect(wanted));
    const size_t count = std::clamp<size_t>(
        batches_waiting(), 1, static_cast<size_t>(options_.threads));
    {
      const Watcher watcher(
          options_, [this] { return CheckCancelled(); }, [this] { Report(); });
      std::vector<Thread> threads;
      for (size_t i = 0; i < count; ++i) {
        threads.emplace_back("fetch", [this] { Work(); });
      }
    }
    Report();
    MutexLock lock(&mu_);
    return error_;
  }

 private:
  // A source's record in this fetch.
  struct Source {
    int active = 0;    // calls
    int failures = 0;  // since it was last of use
    int bad = 0;       // pieces
    bool left_out = false;
    Deadline retry = Deadline::In(absl::ZeroDuration());
    absl::Status last;
  };

  absl::Status Collect(const PiecesByFile& wanted) {
    MutexLock lock(&mu_);
    for (const auto& [name, pieces] : wanted) {
      const std::shared_ptr<PieceFile> file = options_.model->Find(name);
      if (file == nullptr) return Internal("no hashes of ", name);
      file->Refresh();
      const PiecedFile id = IdOf(*options_.model, name);
      for (const uint64_t piece : pieces) {
        if (piece >= file->list().size()) return Internal("no piece ", piece);
        const PieceFile::State state = file->state(piece);
        if (state == PieceFile::State::kPresent) continue;
        const bool check = state == PieceFile::State::kRecorded;
        if (!check) total_ += file->list().bytes(piece);
        Batch* const last = batches_.empty() ? nullptr : &batches_.back();
        if (last != nullptr && last->file == file && last->check == check &&
            last->first + last->count == piece && last->count < kBatchPieces) {
          ++last->count;
        } else {
          batches_.push_back({file, id, piece, 1, check, {}, {}});
        }
      }
    }
    return absl::OkStatus();
  }

  size_t batches_waiting() {
    MutexLock lock(&mu_);
    return batches_.size();
  }

  // Returns whether the fetch is to end.
  bool CheckCancelled() {
    MutexLock lock(&mu_);
    if (IsCancelled(options_)) {
      FailLocked(absl::CancelledError("fetching was cancelled"));
    }
    return !error_.ok();
  }

  // Runs on the watcher's thread, and at last on the caller's.
  void Report() {
    uint64_t done;
    uint64_t total;
    {
      MutexLock lock(&mu_);
      done = done_;
      total = total_;
    }
    if (options_.progress && total > 0) options_.progress(done, total);
  }

  void FailLocked(const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (error_.ok()) error_ = status;
    changed_.NotifyAll();
  }

  void Work() {
    size_t source = 0;
    while (std::optional<Batch> batch = Next(&source)) {
      if (batch->check) {
        Check(*std::move(batch));
      } else {
        Read(*std::move(batch), source);
      }
    }
  }

  // Takes a batch that can be worked on, with the source to read it from;
  // nullopt when there is no more work. Waits while all sources that could have
  // a piece are to be asked later.
  std::optional<Batch> Next(size_t* source) {
    MutexLock lock(&mu_);
    for (;;) {
      if (!error_.ok()) return std::nullopt;
      if (batches_.empty() && working_ == 0) return std::nullopt;
      absl::Duration wait = absl::InfiniteDuration();
      for (auto it = batches_.begin(); it != batches_.end(); ++it) {
        std::optional<size_t> from;
        if (!it->check) {
          from = ChooseLocked(*it, &wait);
          if (!error_.ok()) return std::nullopt;
          if (!from) continue;
        }
        Batch batch = std::move(*it);
        batches_.erase(it);
        ++working_;
        if (from) {
          *source = *from;
          ++sources_[*from].active;
        }
        return batch;
      }
      changed_.WaitFor(&mu_, wait);
    }
  }

  // Returns the best source that may have the batch's first piece: one that did
  // not send it wrong, did not fail last, has whole files, and is least busy.
  // If there is none now, shortens `wait` to when there may be one, or fails.
  std::optional<size_t> ChooseLocked(const Batch& batch, absl::Duration* wait)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::optional<size_t> best;
    std::tuple<bool, bool, bool, int> best_rank;
    bool later = false;
    for (size_t i = 0; i < sources_.size(); ++i) {
      const Source& source = sources_[i];
      if (source.left_out || batch.absent.contains(i)) continue;
      later = true;
      if (!source.retry.passed()) {
        *wait = std::min(*wait, source.retry.left());
        continue;
      }
      const std::tuple rank(batch.wrong.contains(i), source.failures > 0,
                            i >= options_.num_full, source.active);
      if (best && best_rank <= rank) continue;
      best = i;
      best_rank = rank;
    }
    if (best) return best;
    if (!later || give_up_.passed()) {
      FailLocked(Unavailable("can't fetch piece ", batch.first, " of ",
                             batch.id.name, ": ", Reasons(batch)));
    }
    *wait = std::min(*wait, give_up_.left());
    return std::nullopt;
  }

  std::string Reasons(const Batch& batch) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (sources_.empty()) {
      return "nobody in the cluster has the model's weights; start a worker "
             "with --model, or the coordinator with a directory that has them";
    }
    std::string text;
    for (size_t i = 0; i < sources_.size(); ++i) {
      absl::StrAppend(
          &text, i == 0 ? "" : "; ", options_.sources[i]->name(), ": ",
          batch.absent.contains(i) ? "has it not"
          : sources_[i].last.ok()  ? "is not asked"
                                   : std::string(sources_[i].last.message()));
    }
    return text;
  }

  void Check(Batch batch) {
    absl::Status status;
    std::vector<uint64_t> damaged;
    for (uint64_t i = 0; i < batch.count && status.ok(); ++i) {
      if (stopped()) break;
      const absl::StatusOr<bool> right = batch.file->Check(batch.first + i);
      status = right.status();
      if (right.ok() && !*right) damaged.push_back(batch.first + i);
      AddMark(options_.marks);
    }
    for (const uint64_t piece : damaged) {
      LogWarning(batch.file->path(), ": piece ", piece,
                 " is damaged; it is fetched again");
    }
    MutexLock lock(&mu_);
    --working_;
    for (const uint64_t piece : damaged) {
      total_ += batch.file->list().bytes(piece);
      batches_.push_back({batch.file, batch.id, piece, 1, false, {}, {}});
    }
    if (!status.ok()) FailLocked(status);
    changed_.NotifyAll();
  }

  bool stopped() {
    MutexLock lock(&mu_);
    return !error_.ok();
  }

  void Read(Batch batch, size_t source) {
    absl::Status own;  // an error of ours
    bool wrong = false;
    uint64_t done = 0;
    const auto take = [&](uint64_t piece,
                          std::span<const absl::string_view> parts) {
      const PieceFile& file = *batch.file;
      if (piece != batch.first + done || done == batch.count) {
        return absl::InternalError("a piece that was not asked for came");
      }
      size_t bytes = 0;
      for (const absl::string_view part : parts) bytes += part.size();
      wrong = bytes != file.list().bytes(piece) ||
              !IsHash(parts, file.list().hash(piece));
      if (wrong) return absl::DataLossError("a piece is wrong");
      own = batch.file->Write(piece, parts);
      if (!own.ok()) return own;
      ++done;
      Count(source, bytes);
      return stopped() ? absl::CancelledError("over") : absl::OkStatus();
    };
    absl::Status status = options_.sources[source]->Read(batch.id, batch.first,
                                                         batch.count, take);
    if (status.ok() && done < batch.count) {
      status = absl::UnavailableError("it sent less than it was asked for");
    }
    if (wrong && options_.on_refused) options_.on_refused(source);
    batch.first += done;
    batch.count -= done;
    MutexLock lock(&mu_);
    --working_;
    --sources_[source].active;
    if (done > 0) {
      batch.absent.clear();
      batch.wrong.clear();
    }
    if (!own.ok()) {
      FailLocked(own);
    } else if (error_.ok() && batch.count > 0) {
      BlameLocked(std::move(batch), source, status, wrong);
    }
    changed_.NotifyAll();
  }

  // Notes why the batch's first piece did not come, and puts it back.
  void BlameLocked(Batch batch, size_t index, const absl::Status& status,
                   bool wrong) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Source& source = sources_[index];
    const std::string name = options_.sources[index]->name();
    source.last = status;
    if (wrong) {
      batch.wrong.insert(index);
      source.left_out = ++source.bad >= kMaxBadPieces;
      source.last =
          DataLoss("sent ", source.bad, source.bad == 1 ? " piece" : " pieces",
                   " that did not have the right hash");
      LogWarning("piece ", batch.first, " of ", batch.id.name, " from ", name,
                 " is corrupted; ",
                 source.left_out ? "it is not asked any more"
                                 : "the piece is fetched again");
    } else if (absl::IsNotFound(status)) {
      batch.absent.insert(index);
    } else if (absl::IsFailedPrecondition(status) ||
               absl::IsUnimplemented(status)) {
      source.left_out = true;
      LogWarning("no weights from ", name, ": ", status.message());
    } else {
      const absl::Duration wait = std::min(
          kMaxRetry,
          options_.first_retry * (int64_t{1} << std::min(source.failures, 10)));
      if (source.failures++ == 0) {
        LogWarning("fetching weights from ", name, ": ", status.message(),
                   "; it is tried again");
      }
      source.retry = Deadline::In(wait);
      if (give_up_ == Deadline::Never()) {
        give_up_ = Deadline::In(options_.patience);
      }
    }
    batches_.push_front(std::move(batch));
  }

  void Count(size_t source, uint64_t bytes) {
    AddMark(options_.marks);
    if (options_.on_fetched) options_.on_fetched(source, bytes);
    MutexLock lock(&mu_);
    sources_[source].failures = 0;
    give_up_ = Deadline::Never();
    done_ += bytes;
  }

  const FetchOptions& options_;
  Mutex mu_;
  CondVar changed_;
  std::deque<Batch> batches_ ABSL_GUARDED_BY(mu_);  // waiting
  size_t working_ ABSL_GUARDED_BY(mu_) = 0;         // batches taken
  std::vector<Source> sources_ ABSL_GUARDED_BY(mu_);
  uint64_t done_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t total_ ABSL_GUARDED_BY(mu_) = 0;
  // When patience with sources that fail ends, none being of use.
  Deadline give_up_ ABSL_GUARDED_BY(mu_) = Deadline::Never();
  absl::Status error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::Status FetchLists(const FetchOptions& options,
                        const std::vector<std::string>& names) {
  const Watcher watcher(
      options, [&] { return IsCancelled(options); }, [] {});
  for (const std::string& name : names) {
    if (options.model->Find(name) != nullptr) continue;
    const PiecedFile file = IdOf(*options.model, name);
    std::string reasons;
    bool known = false;
    for (const auto& source : options.sources) {
      if (IsCancelled(options)) {
        return absl::CancelledError("fetching was cancelled");
      }
      absl::StatusOr<PieceListPtr> list = source->List(file);
      absl::Status status = list.status();
      AddMark(options.marks);
      if (list.ok()) {
        status = options.model->Add(name, *std::move(list)).status();
      }
      known = status.ok();
      if (known) break;
      if (absl::IsResourceExhausted(status)) return status;
      absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", source->name(),
                      ": ", status.message());
    }
    if (known) continue;
    return Unavailable("can't fetch ", name, ": ",
                       reasons.empty()
                           ? "nobody in the cluster has the model's weights; "
                             "start a worker with --model, or the coordinator "
                             "with a directory that has them"
                           : reasons);
  }
  return absl::OkStatus();
}

absl::Status FetchPieces(const FetchOptions& options,
                         const PiecesByFile& wanted) {
  return Fetch(options).Run(wanted);
}

}  // namespace sluice
