#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace sluice {

// Prompts of one length, of which `count` follow each other through the
// pipeline before it runs empty.
struct SlicedPrompts {
  int32_t tokens = 0;
  double count = 0;
};

struct Slicing {
  std::vector<int32_t> lengths;  // of the longest prompt, in tokens
  double max_seconds = 0;        // of any slice, on one stage
  double seconds = 0;            // until all prompts are through all stages
};

// Cuts prompts into slices that follow each other through `num_stages` stages:
// TeraPipe's dynamic programme ("TeraPipe: Token-Level Pipeline Parallelism for
// Training Large-Scale Language Models", section 2.3.3, equations 2.5 to 2.8
// and algorithm 1), which minimises
//
//   sum of t_i + (num_stages - 1) x max of t_i
//
// where t_i is what slice i takes of the slowest stage. The sum is over all
// prompts, each cut at its best for the common maximum; with one prompt it is
// TeraPipe's. Short slices leave the pipeline less empty at its begin and end,
// but each has costs of its own: of calls, of few rows in a product, of a sweep
// over weights that are streamed.
//
// `seconds(length, context)` are t of a slice of `length` tokens behind
// `context` others, and must not fall with either. Slices are multiples of
// `unit` tokens, and so are prompts, for this purpose. Maxima that differ so
// little that it could not matter by more than 0.1 % are tried once (TeraPipe's
// epsilon). O(n^2) calls of `seconds` and O(n^2) work for each maximum, n being
// the units of the longest prompt.
//
// REQUIRES: a prompt; positive tokens, unit and num_stages.
Slicing BestSlicing(
    absl::Span<const SlicedPrompts> prompts, int32_t unit, int num_stages,
    absl::FunctionRef<double(int32_t length, int32_t context)> seconds);

}  // namespace sluice
