#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

// Text that comes from outside (names, paths, messages of other machines, what
// a model wrote) before it is stored, sent or shown.

namespace sluice {

// The longest beginning of `text` of at most `max_bytes` bytes that splits no
// character. What is not UTF-8 counts as bytes.
absl::string_view ClipUtf8(absl::string_view text, size_t max_bytes);

// `text` with each byte that is not part of valid UTF-8 as "\xNN": what may
// stand in strings of protobuf and JSON, which are UTF-8 or cannot be read.
std::string EscapeInvalidUtf8(absl::string_view text);

// `text` so that a terminal shows it and obeys none of it, on one line: control
// characters (C0 as "\n", "\t", "\r" or "\xNN", DEL, C1), characters that
// reorder what is beside them or break lines ("\u202e"), and bytes that are not
// UTF-8 are escaped.
std::string EscapeForTerminal(absl::string_view text);

// As EscapeForTerminal, but lines stay lines. All but the first are indented,
// so that none looks like the start of another message.
std::string EscapeLinesForTerminal(absl::string_view text);

// A line of JSON with the same characters escaped as JSON escapes them
// ("\u009b"): the same value, and fit for a terminal. REQUIRES: valid JSON,
// whose dump has already escaped C0.
std::string EscapeJsonForTerminal(absl::string_view json);

// `text` as a string of JSON, as Python's json.dumps writes it: what is not
// UTF-8 becomes U+FFFD; with `ensure_ascii` all above U+007E is escaped.
std::string QuoteJson(absl::string_view text, bool ensure_ascii = false);

// A value as error messages show it: in double quotes, control characters and
// quotes escaped, what is not UTF-8 replaced, cut with "..." after about
// `max_bytes`.
std::string QuoteForMessage(absl::string_view text, size_t max_bytes = 64);

}  // namespace sluice
