#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/text/tokenizer/json_part.h"

namespace sluice {

// Puts special tokens around a text's tokens. Immutable, thread-safe.
class PostProcessor {
 public:
  // Makes a processor that adds nothing.
  PostProcessor() = default;
  // Reads tokenizer.json's "post_processor".
  static absl::StatusOr<PostProcessor> FromJson(const JsonPart& part);
  // Makes a processor that adds these tokens before and behind.
  static PostProcessor Around(std::vector<int32_t> before,
                              std::vector<int32_t> behind);

  std::vector<int32_t> Apply(std::vector<int32_t> ids,
                             bool add_special_tokens) const;

 private:
  // A template's part: special tokens, or the text (then `ids` is empty).
  struct Part {
    bool text;
    std::vector<int32_t> ids;
  };
  using Template = std::vector<Part>;

  static absl::Status Append(const JsonPart& part, int depth,
                             std::vector<Template>* out);

  std::vector<Template>
      templates_;  // each applies to the result of the one before
};

}  // namespace sluice
