#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/request.h"

namespace sluice {

// Returns the embedding that a pooled vector becomes: its first
// params.dimensions elements, then, if asked for, divided by their length
// (Euclidean, at least 1e-12, in float64). REQUIRES: dimensions <= its size.
std::vector<float> EmbeddingOf(std::vector<float> pooled,
                               const EmbeddingParams& params);

// Formats the body of an answer of /v1/embeddings, as OpenAI does: an embedding
// for each of the line's requests, as the fewest digits that read back as the
// same float32, or in base64. `model` is a JSON string.
std::string FormatEmbeddings(const FinishedLine& line, absl::string_view model);

}  // namespace sluice
