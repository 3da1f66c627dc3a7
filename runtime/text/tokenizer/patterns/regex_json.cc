#include "runtime/text/tokenizer/patterns/regex_json.h"

#include <nlohmann/json.hpp>

#include "common/status_macros.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<Regex>> PatternFromJson(const JsonPart& part) {
  SLUICE_ASSIGN_OR_RETURN(const JsonPart pattern, part.Get("pattern"));
  absl::StatusOr<std::unique_ptr<Regex>> regex;
  if (pattern.value().is_string()) {
    regex = Regex::Literal(pattern.value().get<std::string>());
  } else {
    SLUICE_ASSIGN_OR_RETURN(const auto literal, pattern.Find("String"));
    SLUICE_ASSIGN_OR_RETURN(const auto source, pattern.Find("Regex"));
    if (literal) {
      SLUICE_ASSIGN_OR_RETURN(const std::string text, literal->String());
      regex = Regex::Literal(text);
    } else if (source) {
      SLUICE_ASSIGN_OR_RETURN(const std::string text, source->String());
      regex = Regex::Compile(text);
    } else {
      return pattern.Invalid("has neither \"String\" nor \"Regex\"");
    }
  }
  if (!regex.ok()) return Annotate(regex.status(), pattern.where());
  return regex;
}

}  // namespace sluice
