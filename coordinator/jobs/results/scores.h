#pragma once

#include <vector>

#include "coordinator/request.h"

namespace sluice {

// Returns the scores of a line that compares queries with documents, one for
// each document: of a reranker, the probability of its token for yes against
// that for no; else the cosine of query and document. See ScoreParams.
// REQUIRES: the line's requests have ended without an error.
std::vector<double> ScoresOf(const FinishedLine& line);

}  // namespace sluice
