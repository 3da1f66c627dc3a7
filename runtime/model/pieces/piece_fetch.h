#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/threads/work_marks.h"
#include "runtime/model/pieces/model_cache.h"
#include "runtime/model/pieces/piece_source.h"
#include "runtime/model/pieces/stage_pieces.h"

namespace sluice {

// Fetches pieces of a model from several sources at a time.
//
// Each piece is hashed before it is written. A wrong one is fetched again, from
// another source if there is one; a source that sends kMaxBadPieces of them is
// left out from then on. A source that does not answer is asked again later,
// and the others meanwhile.
struct FetchOptions {
  CachedModel* model = nullptr;
  std::vector<std::shared_ptr<PieceSource>> sources;
  // The first ones have whole files. The others are only asked for what these
  // cannot give now.
  size_t num_full = SIZE_MAX;
  int threads = 4;  // each with a call of its own
  // Called all the time, also when nothing comes, with the bytes fetched so far
  // and those to fetch.
  std::function<void(uint64_t done, uint64_t total)> progress;
  WorkMarks* marks = nullptr;  // a mark for each piece; may be null
  // Ends the fetch with kCancelled when it becomes true; may be null.
  const std::atomic<bool>* cancelled = nullptr;
  // A call to which nothing comes for this long is given up.
  absl::Duration max_silence = absl::Seconds(60);
  // The fetch is given up when no source was of use for this long.
  absl::Duration patience = absl::Seconds(30);
  absl::Duration first_retry = absl::Milliseconds(200);  // doubles, to 5 s
  // Called for each piece that was written, and for each wrong one, with the
  // source's index; by several threads. May be empty.
  std::function<void(size_t source, uint64_t bytes)> on_fetched;
  std::function<void(size_t source)> on_refused;
};

inline constexpr int kMaxBadPieces = 3;  // of one source, in one fetch

// Opens files of the model whose hashes are not known here, by asking the
// sources for them. kUnavailable says what each source answered.
absl::Status FetchLists(const FetchOptions& options,
                        const std::vector<std::string>& names);

// Makes all `wanted` pieces present: checks those that are only recorded, and
// fetches those that are absent. The files must be open.
// kUnavailable: some piece could not be had from any source, and why;
// kResourceExhausted: no space; kCancelled.
absl::Status FetchPieces(const FetchOptions& options,
                         const PiecesByFile& wanted);

}  // namespace sluice
