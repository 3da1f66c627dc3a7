#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "runtime/model/checkpoint/content_hashes.h"
#include "runtime/model/checkpoint/model_content.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/model_dir.h"

namespace sluice {

// Finds out on a thread of its own what a model directory's files hold, so that
// it can be compared with another's: that is a minute's work for 140 GB, once.
// Processes that share a cache hash one after the other, and what one found out
// the next one need not. Thread-safe.
class ContentCheck {
 public:
  struct Options {
    std::shared_ptr<const ModelDir> model;
    bool dummy_weights = false;  // only config.json counts
    // False: sizes and times stand for hashes, which is enough to know the
    // same files again.
    bool hash = true;
    std::string cache_file;  // see ContentHashes
  };

  struct State {
    std::string fingerprint;  // see ModelDir
    ModelContent content;
    // Why the files can't be read; tried again by the next Refresh().
    absl::Status error;
    uint64_t hashed_bytes = 0;
    uint64_t bytes_to_hash = 0;
    // Verify() has found that the files are not what they were.
    bool outdated = false;

    bool known() const { return error.ok() && content.known(); }
  };

  // Reads the headers of the files, whose errors are returned, and begins.
  static absl::StatusOr<std::unique_ptr<ContentCheck>> Start(Options options);
  ~ContentCheck();

  State state() const;
  // The state once all is known, or as it is after `most`.
  State WaitKnown(absl::Duration most);
  // Begins anew if a file is not what it was, or could not be read. The state
  // then.
  State Refresh();
  // OK if all is known and the files have not changed since, as far as the file
  // system tells. Else kUnavailable: state() tells no more what they hold,
  // until Refresh().
  absl::Status Verify();

 private:
  // Of each file: its path and FileStamp.
  using Stamps = std::vector<std::pair<std::string, std::string>>;

  explicit ContentCheck(Options options) : options_(std::move(options)) {}
  // Whether the files are still what stamps_ says.
  bool SameFiles() const;
  // Opens the files and notes what there is to hash.
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
  bool wanted_ ABSL_GUARDED_BY(mu_) = true;
  Thread thread_;
};

}  // namespace sluice
