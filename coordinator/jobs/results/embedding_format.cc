#include "coordinator/jobs/results/embedding_format.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little);

void AppendFloat(float value, std::string* out) {
  char text[32];
  out->append(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

std::string FormatValues(const std::vector<float>& values, bool base64) {
  if (base64) {
    const absl::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                  values.size() * sizeof(float));
    return absl::StrCat("\"", absl::Base64Escape(bytes), "\"");
  }
  std::string list = "[";
  for (const float value : values) {
    if (list.size() > 1) list += ',';
    AppendFloat(value, &list);
  }
  list += ']';
  return list;
}

}  // namespace

std::vector<float> EmbeddingOf(std::vector<float> pooled,
                               const EmbeddingParams& params) {
  constexpr double kLeastLength = 1e-12;  // as torch's normalize()
  if (params.dimensions > 0) pooled.resize(params.dimensions);
  if (!params.normalize) return pooled;
  double squares = 0;
  for (const float x : pooled) squares += static_cast<double>(x) * x;
  const double length = std::max(std::sqrt(squares), kLeastLength);
  for (float& x : pooled) x = static_cast<float>(x / length);
  return pooled;
}

std::string FormatEmbeddings(const FinishedLine& line,
                             absl::string_view model) {
  std::string body = "{\"object\":\"list\",\"data\":[";
  int64_t prompt_tokens = 0;
  for (const FinishedRequest& part : line) {
    const Request& request = part.request;
    absl::StrAppend(
        &body, request.part > 0 ? "," : "",
        "{\"object\":\"embedding\",\"index\":", request.part, ",\"embedding\":",
        FormatValues(EmbeddingOf(part.generation.pooled, request.embedding),
                     request.embedding.base64),
        "}");
    prompt_tokens += std::ssize(request.prompt);
  }
  absl::StrAppend(&body, "],\"model\":", model,
                  ",\"usage\":{\"prompt_tokens\":", prompt_tokens,
                  ",\"total_tokens\":", prompt_tokens, "}}");
  return body;
}

}  // namespace sluice
