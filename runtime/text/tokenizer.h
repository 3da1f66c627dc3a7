#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Text to token ids and back, exactly as Hugging Face tokenizers does it.
// Immutable, thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Reads tokenizer.json, or else vocab.json + merges.txt, and
  // tokenizer_config.json / special_tokens_map.json. Errors name the file and
  // the part of it that is wrong or not supported.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(
      const std::filesystem::path& model_dir);

  // kInvalidArgument (with the byte offset) if `text` is not valid UTF-8. With
  // `add_special_tokens` the post-processor's template is applied (BOS and the
  // like).
  virtual absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text, bool add_special_tokens) const = 0;

  // Ids outside the vocabulary are left out, as Hugging Face does.
  virtual std::string Decode(std::span<const int32_t> ids,
                             bool skip_special_tokens) const = 0;

  virtual int32_t vocab_size()
      const = 0;  // largest id + 1, added tokens included
  virtual std::optional<int32_t> TokenToId(absl::string_view token) const = 0;
  virtual std::string IdToToken(int32_t id) const = 0;  // "" if unknown
  virtual bool IsSpecial(int32_t id) const = 0;

  // As configured: "<s>", ...; "" if there is none. Chat templates use them.
  virtual const std::string& bos_token() const = 0;
  virtual const std::string& eos_token() const = 0;
};

}  // namespace sluice
