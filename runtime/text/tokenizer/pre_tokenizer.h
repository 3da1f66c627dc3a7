#pragma once

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/text/tokenizer/json_part.h"
#include "runtime/text/tokenizer/pieces.h"

namespace sluice {

// Cuts text into words: replaces each piece that is still text by its words.
// Thread-safe.
using PreTokenizer = absl::AnyInvocable<absl::Status(Pieces* pieces) const>;

// Reads tokenizer.json's "pre_tokenizer". With `bytes_at_end`, a ByteLevel that
// comes last leaves bytes as they are, for a model that reads bytes, and
// `*bytes` tells whether there is one.
absl::StatusOr<PreTokenizer> CreatePreTokenizer(const JsonPart& part,
                                                bool bytes_at_end, bool* bytes);
// Makes GPT-2's: ByteLevel with use_regex, leaving bytes as they are.
absl::StatusOr<PreTokenizer> CreateGpt2PreTokenizer(bool add_prefix_space);

}  // namespace sluice
