#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "runtime/model/checkpoint/content_check.h"
#include "runtime/model/checkpoint/model_content.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {

// What a worker said of its copy of the model. kInvalidArgument for what no
// directory can hold.
absl::StatusOr<ModelContent> ContentOf(const v1::ModelContent& message);

// Which copy of the model counts, so that all answers are one model's: while
// jobs are unfinished that began with a copy, that one; else the coordinator's
// own, if it has weights; else that of the first worker who knows its own.
// Confined to a thread.
class ModelIdentity {
 public:
  struct Options {
    // Of the coordinator's own copy; null if it has none, or need not compare.
    std::function<ContentCheck::State()> own;
    std::string own_dir;  // for messages
    // The copy that the unfinished jobs of an earlier life began with, and
    // whether there are any such jobs (at any time). Null: there never are.
    ModelContent begun;
    std::function<bool()> jobs_begun;
  };

  explicit ModelIdentity(Options options) : options_(std::move(options)) {}

  // Somebody's copy of the model.
  struct Copy {
    std::string worker;  // name
    std::string dir;
    ModelContent content;
  };

  // Whether `copy` is the one that counts. OK: it is. kUnavailable: nobody can
  // say yet. kFailedPrecondition, in one line for people: it is another.
  // `first`: that of a worker for which this said OK, or null. What it says
  // changes when the last job ends that began with another copy: those for
  // which it said OK are then to be checked again, without `first`.
  absl::Status Check(const Copy& copy, const Copy* first) const;

  // Steps are computed from now on with `content`, which was checked. True if
  // that is another one than before, to be remembered with the jobs.
  bool Begin(const ModelContent& content);

 private:
  const Options options_;
  std::optional<ModelContent> running_;  // the last one that began
};

}  // namespace sluice
