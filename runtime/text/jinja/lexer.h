#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/jinja/value.h"

namespace sluice::jinja {

enum class TokenKind {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,  // text is the operator
  kEof,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // data, name, unescaped string, operator
  Value number;      // the value of kInteger, kFloat
};

// Splits a template as jinja2.lexer does with trim_blocks and lstrip_blocks on:
// one newline at the end of the source is dropped, "\r\n" and "\r" become "\n",
// comments and raw markers vanish. The last token is kEof. kInvalidArgument
// with the line.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

}  // namespace sluice::jinja
