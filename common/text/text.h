#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

// Functions that make text from outside (names, paths, messages of other
// machines, a model's output) fit to be stored, sent or shown.

namespace sluice {

// The longest beginning of `text` of at most `max_bytes` bytes that splits no
// character. Invalid UTF-8 counts as bytes.
absl::string_view ClipUtf8(absl::string_view text, size_t max_bytes);

// Returns `text` with each byte that is not part of valid UTF-8 as "\xNN", as
// strings of protobuf and JSON must be UTF-8.
std::string EscapeInvalidUtf8(absl::string_view text);

// Returns `text` on one line, so that a terminal shows it and obeys none of it:
// control characters (C0 as "\n", "\t", "\r" or "\xNN", DEL, C1), characters
// that reorder what is beside them or break lines ("\u202e"), and bytes that
// are not UTF-8 are escaped.
std::string EscapeForTerminal(absl::string_view text);

// Escapes like EscapeForTerminal, but lines stay lines. All but the first are
// indented, so that none looks like the start of another message.
std::string EscapeLinesForTerminal(absl::string_view text);

// Escapes the same characters in a line of JSON as JSON does ("\u009b"): the
// value stays the same, and is fit for a terminal. REQUIRES: valid JSON, whose
// dump has already escaped C0.
std::string EscapeJsonForTerminal(absl::string_view json);

// Returns what nlohmann::json's exception `what` says to a person, without its
// name: "line 1, column 5: syntax error while ...".
std::string JsonErrorText(absl::string_view what);

// Returns `text` as a JSON string like Python's json.dumps: invalid UTF-8
// becomes U+FFFD; with `ensure_ascii` all above U+007E is escaped.
std::string QuoteJson(absl::string_view text, bool ensure_ascii = false);

// Returns a line of JSON with the characters escaped that some readers take for
// ends of lines, though JSON does not: U+0085, U+2028, U+2029. The value stays
// the same. REQUIRES: valid JSON.
std::string EscapeLineEnds(std::string json);

// Returns a value for error messages: in double quotes, control characters and
// quotes escaped, invalid UTF-8 replaced, cut with "..." after about
// `max_bytes`.
std::string QuoteForMessage(absl::string_view text, size_t max_bytes = 64);

}  // namespace sluice
