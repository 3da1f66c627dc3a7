#include "coordinator/cluster/model_identity.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "proto/wire_limits.h"
#include "runtime/model/checkpoint/shard_index.h"

namespace sluice {
namespace {

constexpr int kMaxFiles = 10'001;  // a model's shards, and config.json
constexpr size_t kMaxNameBytes = 255;
constexpr size_t kMaxHashBytes = 64;
// All files' names and hashes fit into one message.
static_assert(kMaxFiles * (kMaxNameBytes + kMaxHashBytes + 32) +
                  kMaxCopiesBytes + kMaxProfileBytes +
                  12 * kMaxWorkerTextBytes <
              kMaxRequestBytes);

// So does what a worker that fetches the model is told, with its config.json.
static_assert(kMaxFiles * (kMaxNameBytes + kMaxHashBytes + 32) +
                  kMaxCopiesBytes + (16 << 20) + 1024 * kMaxWorkerTextBytes <
              kMaxInstructionBytes);

absl::Status Another(const ModelIdentity::Copy& copy, absl::string_view whose,
                     absl::string_view difference, absl::string_view remedy) {
  return FailedPrecondition("worker '", copy.worker, "' has another model in ",
                            copy.dir, " than ", whose, ": ", difference, "; ",
                            remedy);
}

// Whether it has weights, and is not that of --load-format dummy.
bool HasWeights(const ModelContent& content) {
  return std::any_of(content.files.begin(), content.files.end(),
                     [](const auto& file) {
                       return absl::EndsWith(file.name, ".safetensors");
                     });
}

// Whether they have one config.json, as have copies of one model.
bool SameConfig(const ModelContent& a, const ModelContent& b) {
  const auto config = [](const ModelContent& content) {
    ModelContent::File found;
    for (const ModelContent::File& file : content.files) {
      if (file.name == "config.json") found = file;
    }
    return found;
  };
  return config(a) == config(b);
}

}  // namespace

absl::StatusOr<ModelContent> ContentOf(const v1::ModelContent& message) {
  if (message.files_size() > kMaxFiles) {
    return InvalidArgument("a model of ", message.files_size(),
                           " files; the most is ", kMaxFiles);
  }
  ModelContent content;
  content.files.reserve(static_cast<size_t>(message.files_size()));
  for (const v1::ModelContent::File& file : message.files()) {
    if (file.name().empty() || file.name().size() > kMaxNameBytes ||
        file.hash().size() > kMaxHashBytes) {
      return absl::InvalidArgumentError(
          "a model's file has a name or a hash of no sensible length");
    }
    // Names are escaped, as messages quote them.
    content.files.push_back(
        {absl::Utf8SafeCEscape(file.name()), file.bytes(), file.hash()});
  }
  if (message.copies().size() > kMaxCopiesBytes) {
    return absl::InvalidArgumentError(
        "a model's list of copies of tensors is too long");
  }
  content.copies = message.copies();
  std::sort(content.files.begin(), content.files.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return content;
}

absl::Status ModelIdentity::Check(const Copy& copy, const Copy* first) const {
  const auto copy_again = [&](const ModelContent& other) {
    return SameConfig(copy.content, other)
               ? "copy it again"
               : "give the worker that model by --model, or leave --model out "
                 "to have it fetched";
  };
  const auto known = [&](const ModelContent& other, absl::string_view whose,
                         absl::string_view remedy) {
    const std::string difference = DifferenceOf(copy.content, other);
    if (!difference.empty()) {
      return Another(copy, whose, difference,
                     HasWeights(copy.content) == HasWeights(other)
                         ? remedy
                         : "start both with --load-format dummy, or neither");
    }
    if (copy.content.known() && other.known()) return absl::OkStatus();
    return absl::UnavailableError("the model's files are being compared");
  };
  const bool begun = options_.jobs_begun && options_.jobs_begun();
  if (begun && running_) {
    return known(*running_, "unfinished jobs began with",
                 "copy that one again, or cancel these jobs");
  }
  if (begun && options_.begun.known()) {
    return known(options_.begun, "unfinished jobs began with",
                 "copy that one again, or cancel these jobs");
  }
  if (options_.own) {
    const ContentCheck::State own = options_.own();
    // All workers may be able to read files that can't be read here.
    if (own.error.ok()) {
      return known(own.content,
                   absl::StrCat("the coordinator in ", options_.own_dir),
                   copy_again(own.content));
    }
  }
  if (first != nullptr) {
    return known(first->content,
                 absl::StrCat("worker '", first->worker, "' in ", first->dir),
                 copy_again(first->content));
  }
  if (copy.content.known()) return absl::OkStatus();
  return absl::UnavailableError("the model's files are being compared");
}

std::optional<ModelContent> ModelIdentity::Counting(const Copy* first) const {
  std::optional<ModelContent> own;
  bool has_own = false;
  if (options_.own) {
    const ContentCheck::State state = options_.own();
    has_own = state.error.ok();
    if (state.known()) own = state.content;
  }
  std::optional<ModelContent> its;
  if (first != nullptr && first->content.known()) its = first->content;
  if (options_.jobs_begun && options_.jobs_begun()) {
    const ModelContent& begun = running_ ? *running_ : options_.begun;
    // Hashes that an earlier version stored are of no use for a fetch.
    for (const std::optional<ModelContent>& copy : {own, its}) {
      if (begun.known() && copy && DifferenceOf(*copy, begun).empty()) {
        return copy;
      }
    }
    if (begun.known()) return begun;
  }
  return has_own ? own : its;
}

bool ModelIdentity::HasOwn(const ModelContent& content) const {
  if (!options_.own) return false;
  const ContentCheck::State own = options_.own();
  return own.known() && own.content == content;
}

bool ModelIdentity::Begin(const ModelContent& content) {
  const ModelContent* before = running_ ? &*running_ : &options_.begun;
  const bool news = !(*before == content);
  running_ = content;
  return news;
}

}  // namespace sluice
