// A row's data is a sequence of entries, little-endian:
//
//   int64 index, int32 begin, int32 count, int32 2 * part + has_logprobs
//   int32 tokens[count]
//   if has_logprobs, for each token: float logprob, int32 n,
//     n times int32 token, float logprob

#include "coordinator/store/progress_log.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/status_macros.h"
#include "coordinator/store/row_sum.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kRowBytes = 4 << 20;
// A log shorter than this is not written anew.
constexpr int64_t kSmallLog = 8 << 20;

template <typename T>
void Put(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Reads numbers from `data`; after a failure all are 0.
class Reader {
 public:
  explicit Reader(absl::string_view data) : data_(data) {}
  bool failed() const { return failed_; }
  bool done() const { return failed_ || data_.empty(); }

  template <typename T>
  T Get() {
    T value = 0;
    if (!Has(sizeof(T))) return value;
    std::memcpy(&value, data_.data(), sizeof(T));
    data_.remove_prefix(sizeof(T));
    return value;
  }

  // A number of things of `bytes` each, which must all be there.
  int32_t GetCount(size_t bytes) {
    const auto count = Get<int32_t>();
    if (count < 0 || !Has(static_cast<size_t>(count) * bytes)) {
      failed_ = true;
      return 0;
    }
    return count;
  }

 private:
  bool Has(size_t bytes) {
    failed_ = failed_ || data_.size() < bytes;
    return !failed_;
  }

  absl::string_view data_;
  bool failed_ = false;
};

void AppendEntry(const StoredProgress& progress, std::string* out) {
  Put(progress.index, out);
  Put(progress.begin, out);
  Put(static_cast<int32_t>(progress.tokens.size()), out);
  Put<int32_t>(2 * progress.part + (progress.logprobs.empty() ? 0 : 1), out);
  out->append(reinterpret_cast<const char*>(progress.tokens.data()),
              progress.tokens.size() * sizeof(int32_t));
  for (const SampledToken& token : progress.logprobs) {
    Put(token.logprob, out);
    Put(static_cast<int32_t>(token.top.size()), out);
    for (const TokenLogprob& top : token.top) {
      Put(top.token, out);
      Put(top.logprob, out);
    }
  }
}

StoredProgress ReadEntry(JobId job, Reader* in) {
  StoredProgress entry;
  entry.job = job;
  entry.index = in->Get<int64_t>();
  entry.begin = in->Get<int32_t>();
  const int32_t count = in->Get<int32_t>();
  const int32_t kind = in->Get<int32_t>();
  entry.part = kind / 2;
  const bool has_logprobs = kind % 2 != 0;
  for (int32_t i = 0; i < count && !in->failed(); ++i) {
    entry.tokens.push_back(in->Get<int32_t>());
  }
  for (int32_t i = 0; has_logprobs && i < count && !in->failed(); ++i) {
    SampledToken& token = entry.logprobs.emplace_back();
    token.token = entry.tokens[i];
    token.logprob = in->Get<float>();
    token.top.resize(in->GetCount(sizeof(int32_t) + sizeof(float)));
    for (TokenLogprob& top : token.top) {
      top.token = in->Get<int32_t>();
      top.logprob = in->Get<float>();
    }
  }
  return entry;
}

// By index and part.
using KnownProgress = std::map<std::pair<int64_t, int32_t>, StoredProgress>;

// Adds an entry to what is known of its request. One that begins before the end
// replaces what follows; one that begins behind it misses something between,
// and is left out.
void Apply(StoredProgress entry, KnownProgress* known) {
  const auto begin = static_cast<size_t>(entry.begin);
  if (entry.begin < 0) return;
  if (begin == 0) {
    (*known)[{entry.index, entry.part}] = std::move(entry);
    return;
  }
  const auto it = known->find({entry.index, entry.part});
  if (it == known->end() || begin > it->second.tokens.size() ||
      it->second.logprobs.empty() != entry.logprobs.empty()) {
    return;
  }
  StoredProgress& all = it->second;
  all.tokens.resize(begin);
  all.tokens.insert(all.tokens.end(), entry.tokens.begin(), entry.tokens.end());
  if (entry.logprobs.empty()) return;
  all.logprobs.resize(begin);
  std::move(entry.logprobs.begin(), entry.logprobs.end(),
            std::back_inserter(all.logprobs));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProgressLog>> ProgressLog::Create(SqliteDb* db) {
  std::unique_ptr<ProgressLog> log(new ProgressLog());
  const std::pair<SqliteStatement*, const char*> statements[] = {
      {&log->add_,
       "INSERT INTO progress(job, part, key, data, sum) "
       "VALUES(?1, ?2, ?3, ?4, ?5)"},
      {&log->next_,
       "SELECT ifnull(max(part), 0) + 1 FROM progress WHERE job = ?1"},
      {&log->read_,
       "SELECT part, key, data, sum FROM progress WHERE job = ?1 "
       "ORDER BY part"},
      {&log->forget_, "DELETE FROM progress WHERE job = ?1"},
      {&log->remove_foreign_,
       "DELETE FROM progress WHERE job = ?1 AND key != ?2"},
      {&log->pending_, "SELECT 1 FROM requests WHERE job = ?1 AND idx = ?2"},
      {&log->in_progress_, "SELECT 1 FROM jobs WHERE id = ?1 AND state = 2"},
  };
  for (const auto& [statement, sql] : statements) {
    SLUICE_ASSIGN_OR_RETURN(*statement, db->Prepare(sql));
  }
  return log;
}

absl::StatusOr<bool> ProgressLog::IsPending(JobId job, int64_t index) {
  SqliteReset reset(&pending_);
  return pending_.Bind(1, job.value()).Bind(2, index).Step();
}

absl::StatusOr<bool> ProgressLog::IsInProgress(JobId job) {
  SqliteReset reset(&in_progress_);
  return in_progress_.Bind(1, job.value()).Step();
}

absl::Status ProgressLog::Append(absl::string_view key,
                                 absl::Span<const StoredProgress> progress) {
  for (size_t begin = 0; begin < progress.size();) {
    // Those of a job mostly follow each other.
    const JobId job = progress[begin].job;
    size_t end = begin;
    while (end < progress.size() && progress[end].job == job) ++end;
    SLUICE_ASSIGN_OR_RETURN(const bool runs, IsInProgress(job));
    if (runs) {
      SLUICE_RETURN_IF_ERROR(
          AppendToJob(job, key, progress.subspan(begin, end - begin)));
    }
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status ProgressLog::AppendToJob(
    JobId job, absl::string_view key,
    absl::Span<const StoredProgress> progress) {
  Size& size = sizes_[job];
  if (size.bytes > kSmallLog + 2 * size.written_anew) {
    return Rewrite(job, key, progress);
  }
  SLUICE_ASSIGN_OR_RETURN(const int64_t written, Write(job, key, progress));
  size.bytes += written;
  return absl::OkStatus();
}

absl::Status ProgressLog::Rewrite(JobId job, absl::string_view key,
                                  absl::Span<const StoredProgress> progress) {
  SLUICE_ASSIGN_OR_RETURN(ReadProgress read, Read(job, key));
  KnownProgress known;
  for (StoredProgress& request : read.requests) {
    const std::pair key(request.index, request.part);
    known.try_emplace(key, std::move(request));
  }
  for (const StoredProgress& entry : progress) {
    SLUICE_ASSIGN_OR_RETURN(const bool pending, IsPending(job, entry.index));
    if (pending) Apply(entry, &known);
  }
  std::vector<StoredProgress> all;
  for (auto& [key, request] : known) all.push_back(std::move(request));
  SLUICE_RETURN_IF_ERROR(Forget(job));
  SLUICE_ASSIGN_OR_RETURN(const int64_t written, Write(job, key, all));
  sizes_[job] = {written, written};
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ProgressLog::Write(
    JobId job, absl::string_view key,
    absl::Span<const StoredProgress> progress) {
  int64_t part = 0;
  {
    SqliteReset reset(&next_);
    SLUICE_RETURN_IF_ERROR(next_.Bind(1, job.value()).Step().status());
    part = next_.Int(0);
  }
  int64_t written = 0;
  std::string data;
  for (size_t i = 0; i < progress.size(); ++i) {
    AppendEntry(progress[i], &data);
    if (data.size() < kRowBytes && i + 1 < progress.size()) continue;
    SqliteReset reset(&add_);
    SLUICE_RETURN_IF_ERROR(add_.Bind(1, job.value())
                               .Bind(2, part)
                               .BindText(3, key)
                               .BindBlob(4, data)
                               .Bind(5, RowSum(job, part, {key, data}))
                               .Run());
    ++part;
    written += static_cast<int64_t>(data.size());
    data.clear();
  }
  return written;
}

absl::StatusOr<ReadProgress> ProgressLog::Read(JobId job,
                                               absl::string_view key) {
  ReadProgress result;
  KnownProgress known;
  int64_t bytes = 0;
  {
    SqliteReset reset(&read_);
    read_.Bind(1, job.value());
    while (true) {
      SLUICE_ASSIGN_OR_RETURN(const bool row, read_.Step());
      if (!row) break;
      const absl::string_view data = read_.Bytes(2);
      bytes += static_cast<int64_t>(data.size());
      if (RowSum(job, read_.Int(0), {read_.Bytes(1), data}) != read_.Int(3)) {
        ++result.damaged;
        continue;
      }
      if (read_.Bytes(1) != key) {
        ++result.foreign;
        continue;
      }
      Reader in(data);
      while (!in.done()) {
        StoredProgress entry = ReadEntry(job, &in);
        if (!in.failed()) Apply(std::move(entry), &known);
      }
      if (in.failed()) ++result.damaged;
    }
  }
  for (auto& [key, request] : known) {
    SLUICE_ASSIGN_OR_RETURN(const bool pending, IsPending(job, request.index));
    if (pending) result.requests.push_back(std::move(request));
  }
  sizes_.try_emplace(job, Size{bytes, bytes});
  return result;
}

absl::Status ProgressLog::RemoveForeign(JobId job, absl::string_view key) {
  SqliteReset reset(&remove_foreign_);
  return remove_foreign_.Bind(1, job.value()).BindText(2, key).Run();
}

absl::Status ProgressLog::Forget(JobId job) {
  sizes_.erase(job);
  SqliteReset reset(&forget_);
  return forget_.Bind(1, job.value()).Run();
}

}  // namespace sluice
