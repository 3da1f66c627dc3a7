#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Turns tokens into text as far as later tokens cannot change it; the
// concatenation of all pieces is Decode's text. Thread-compatible.
class DecodeStream {
 public:
  virtual ~DecodeStream() = default;
  // Appends the text that `token` makes final, in whole UTF-8 characters.
  virtual void Append(int32_t token, std::string* out) = 0;
  // Appends held-back text. Append may follow and begins a new text.
  virtual void Flush(std::string* out) = 0;
};

// Text to token ids and back, exactly as Hugging Face tokenizers does it.
// Immutable, thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Reads tokenizer.json, or else tokenizer.model (SentencePiece: Llama, Gemma
  // and those that do as the file says), or else vocab.json + merges.txt
  // (GPT-2, OPT, Qwen2), and tokenizer_config.json / special_tokens_map.json /
  // added_tokens.json; of a GGUF file, its metadata. tokenizer.json's
  // "truncation" and "padding" are ignored, as transformers does. kNotFound if
  // there is none; kInvalidArgument for broken files and kUnimplemented for
  // unsupported parts name the file and the part.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(
      const std::filesystem::path& model_dir);

  // kInvalidArgument (with the byte offset) if `text` is not valid UTF-8, and
  // for more than 64 MiB; kResourceExhausted if a pattern of the tokenizer
  // backtracks too much or its normalizer's output is too large. With
  // `add_special_tokens` the post-processor's template is applied (BOS and the
  // like).
  virtual absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text, bool add_special_tokens) const = 0;

  // Decodes; ids outside the vocabulary are left out, as in Hugging Face.
  virtual std::string Decode(std::span<const int32_t> ids,
                             bool skip_special_tokens) const;

  // The tokenizer must outlive the stream. Tokens of one stream cost amortised
  // O(1) each.
  virtual std::unique_ptr<DecodeStream> NewDecodeStream(
      bool skip_special_tokens) const = 0;

  virtual int32_t vocab_size()
      const = 0;  // largest id + 1, added tokens included
  virtual std::optional<int32_t> TokenToId(absl::string_view token) const = 0;
  virtual std::string IdToToken(int32_t id) const = 0;  // "" if unknown
  virtual bool IsSpecial(int32_t id) const = 0;

  // The configured special tokens by name: {"bos_token", "<s>"}, {"pad_token",
  // ...}, ... Chat templates use them.
  virtual const std::map<std::string, std::string>& special_tokens() const = 0;
};

}  // namespace sluice
