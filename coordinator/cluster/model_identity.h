#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "runtime/model/checkpoint/content_check.h"
#include "runtime/model/checkpoint/model_content.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {

// Reads a worker's content of its copy of the model. kInvalidArgument if no
// directory can hold it.
absl::StatusOr<ModelContent> ContentOf(const v1::ModelContent& message);

// Decides which copy of the model counts, so that all answers come from one:
// the copy that unfinished jobs began with; else the coordinator's own, if it
// has weights; else that of the first worker that knows its own. Confined to a
// thread.
class ModelIdentity {
 public:
  struct Options {
    // The coordinator's own copy; null if it has none, or need not compare.
    std::function<ContentCheck::State()> own;
    std::string own_dir;  // for messages
    // The copy that the unfinished jobs of an earlier life began with, and
    // whether there are any such jobs (at any time). Null: there never are any.
    ModelContent begun;
    std::function<bool()> jobs_begun;
  };

  explicit ModelIdentity(Options options) : options_(std::move(options)) {}

  // A worker's copy of the model.
  struct Copy {
    std::string worker;  // name
    std::string dir;
    ModelContent content;
  };

  // Checks whether `copy` is the one that counts. kUnavailable: it is not known
  // yet. kFailedPrecondition, in one line for people: it is another. `first` is
  // the copy of a worker for which this returned OK, or null. The result
  // changes when the last job that began with another copy ends: copies that
  // were OK must then be checked again, without `first`.
  absl::Status Check(const Copy& copy, const Copy* first) const;

  // Returns the copy that counts, once it is known; `first` as in Check.
  std::optional<ModelContent> Counting(const Copy* first) const;
  // Whether the coordinator has a copy.
  bool has_own() const { return options_.own != nullptr; }
  // Whether the coordinator has this copy.
  bool HasOwn(const ModelContent& content) const;

  // Called when steps are computed from now on with `content`, which was
  // checked. Returns true if it is new and must be stored with the jobs.
  bool Begin(const ModelContent& content);

 private:
  const Options options_;
  std::optional<ModelContent> running_;  // the last one that began
};

}  // namespace sluice
