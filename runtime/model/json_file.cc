#include "runtime/model/json_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/host/read_file.h"
#include "common/status_macros.h"
#include "common/text/text.h"

namespace sluice {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxJsonFileBytes = size_t{64} << 20;

// The deepest nesting of brackets outside of strings. Exact for valid JSON; the
// parser rejects other text later.
int NestingDepth(absl::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

absl::StatusOr<nlohmann::json> Parse(absl::string_view text, bool array) {
  if (NestingDepth(text) > kMaxDepth) {
    return InvalidArgument("JSON is nested more than ", kMaxDepth, " deep");
  }
  try {
    nlohmann::json value =
        nlohmann::json::parse(text.data(), text.data() + text.size());
    if (array ? !value.is_array() : !value.is_object()) {
      return InvalidArgument("must be a JSON ", array ? "array" : "object",
                             ", but is ", value.type_name());
    }
    return value;
  } catch (const nlohmann::json::exception& e) {
    return InvalidArgument("not JSON: ", JsonErrorText(e.what()));
  }
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text) {
  return Parse(text, /*array=*/false);
}

absl::StatusOr<nlohmann::json> ReadJsonObject(
    const std::filesystem::path& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          ReadSmallFile(path, kMaxJsonFileBytes));
  return Annotate(ParseJsonObject(text), path.string());
}

absl::StatusOr<nlohmann::json> ReadJsonArray(
    const std::filesystem::path& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          ReadSmallFile(path, kMaxJsonFileBytes));
  return Annotate(Parse(text, /*array=*/true), path.string());
}

}  // namespace sluice
