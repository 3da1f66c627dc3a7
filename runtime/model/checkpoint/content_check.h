#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/piece_list.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "runtime/model/checkpoint/content_hashes.h"
#include "runtime/model/checkpoint/model_content.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/model_dir.h"

namespace sluice {

// Hashes a model directory's files on a thread of its own, so that they can be
// compared with another's: that takes a minute for 140 GB, once. Processes that
// share a cache hash one after the other, and reuse each other's hashes.
// Thread-safe.
class ContentCheck {
 public:
  struct Options {
    std::shared_ptr<const ModelDir> model;
    bool dummy_weights = false;  // only config.json counts
    // If false, sizes and times stand for hashes, which is enough to recognize
    // the same files.
    bool hash = true;
    std::string cache_file;  // see ContentHashes
  };

  struct State {
    std::string fingerprint;  // see ModelDir
    ModelContent content;
    // The error of reading the files; the next Refresh() tries again.
    absl::Status error;
    uint64_t hashed_bytes = 0;
    uint64_t bytes_to_hash = 0;
    // Whether Verify() has found that the files have changed.
    bool outdated = false;

    bool known() const { return error.ok() && content.known(); }
  };

  // Reads the files' headers, whose errors are returned, and begins to hash.
  static absl::StatusOr<std::unique_ptr<ContentCheck>> Start(Options options);
  ~ContentCheck();

  State state() const;
  // Returns the state once all is known, or after `max_wait`.
  State WaitKnown(absl::Duration max_wait);
  // Begins anew if a file has changed or could not be read. Returns the new
  // state.
  State Refresh();
  // The pieces of a weight file, with the hash in state(); null if they are not
  // known.
  PieceListPtr Pieces(const std::string& name) const;
  // All of them, by the files' names; none as long as not all are known.
  KnownPieces AllPieces() const;
  // OK if all is known and the files have not changed since, as far as the file
  // system tells. Else kUnavailable: state() is outdated until Refresh().
  absl::Status Verify();
  // To be called when a file is not what was hashed, though it may look
  // unchanged: state() is outdated, and Refresh() has all read again.
  void Distrust();

 private:
  // The path and FileStamp of each file.
  using Stamps = std::vector<std::pair<std::string, std::string>>;

  explicit ContentCheck(Options options) : options_(std::move(options)) {}
  // Whether the files still have their stamps in stamps_.
  bool SameFiles() const;
  // Opens the files and notes those to hash.
  absl::StatusOr<std::unique_ptr<SafetensorsSource>> Look();
  void Run(std::unique_ptr<SafetensorsSource> source);
  absl::Status Hash(const SafetensorsSource& source);

  const Options options_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> hashed_bytes_{0};
  mutable Mutex mu_;
  CondVar changed_;
  State state_ ABSL_GUARDED_BY(mu_);
  Stamps stamps_ ABSL_GUARDED_BY(mu_);
  // By the name of their file.
  std::map<std::string, PieceListPtr> pieces_ ABSL_GUARDED_BY(mu_);
  bool wanted_ ABSL_GUARDED_BY(mu_) = true;
  Thread thread_;
};

}  // namespace sluice
