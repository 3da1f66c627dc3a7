#pragma once

#include <cstdint>
#include <vector>

#include "common/pooling.h"
#include "common/sampling_params.h"
#include "common/types.h"

// The messages of one step of one block, which travel from the dispatcher
// through the stages and back.

namespace sluice {

// Consecutive new tokens of one sequence within a micro-batch.
struct Segment {
  SequenceId sequence;
  int32_t start =
      0;  // position of the first new token = tokens already in the KV cache
  int32_t num_tokens = 0;  // >= 1: a prefill chunk, or 1 for decode
  bool sample =
      false;  // the last stage samples the token that follows this segment; of
              // a sequence with a pooling, which ends here, it gives the vector
  // The last stage also scores the tokens at the positions [score_begin,
  // score_end): each token's log-probability given all before it. As a row
  // predicts the position after its own, they lie within [start + 1, start +
  // num_tokens], the last one only without `sample`. Equal: none.
  int32_t score_begin = 0;
  int32_t score_end = 0;
  int32_t next_token =
      -1;  // at position start + num_tokens, if that one is scored
};

// Sequences computed together. Tokens are packed without padding, in the order
// of the segments.
struct MicroBatch {
  std::vector<Segment> segments;
  std::vector<int32_t> tokens;  // size = sum of num_tokens
};

// The first positions of a sequence, or of a kept prefix. They are whole pages
// of the KV cache, computed in steps before, and nobody writes to them again.
struct SharedPrefix {
  SequenceId source;
  int32_t positions = 0;  // 0: nothing is shared
};

// A prefix that stays in the KV cache whatever becomes of its source, until its
// release. It is named like a sequence, by an id below 0.
struct KeptPrefix {
  SequenceId id;
  SharedPrefix prefix;
};

// A sequence that enters: each stage gives it a KV page table, the last one
// also a sampler, or, with a pooling, a pool: such a sequence has no scores.
struct SequenceAdmission {
  SequenceId sequence;
  int32_t prompt_tokens = 0;  // original prompt; later tokens count as
                              // generated, also when replayed after a failure
  int32_t max_positions = 0;  // positions that it may reach, in all
  SamplingParams sampling;
  Pooling pooling = Pooling::kNone;
  // The sequence begins with these positions, and is computed from there on.
  SharedPrefix prefix;
};

// A sequence has one segment in a step. (Consecutive chunks are possible if its
// KV cache stays in one place; kInvalidArgument if it is on disk.)
//
// Stages apply plans of one epoch strictly in the order in which the dispatcher
// sent them: first `keep`, then `release`, then `admit`, then the computation.
// A plan may hold no micro-batches (it then only releases).
struct StepPlan {
  PlanEpoch epoch;
  BlockId block;
  int64_t step = 0;
  std::vector<KeptPrefix> keep;
  std::vector<SequenceId> release;  // sequences and kept prefixes
  std::vector<SequenceAdmission> admit;
  std::vector<MicroBatch> micro_batches;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob =
      0;  // natural log, of the distribution before temperature and truncation
};

// Log-probabilities of known tokens, at consecutive positions of a sequence.
struct TokenScores {
  SequenceId sequence;
  int32_t begin = 0;            // position of the first
  std::vector<float> logprobs;  // NaN if the logits were not numbers
  int32_t num_top = 0;
  // [logprobs.size()][num_top], most likely first; a token of -1 where fewer
  // tokens are possible at all.
  std::vector<TokenLogprob> top;
};

// token is -1 if the logits were not numbers; the request then ends with an
// error.
struct SampledToken {
  SequenceId sequence;
  int32_t token = 0;
  float logprob = 0;  // set if the request asked for logprobs
  std::vector<TokenLogprob>
      top;  // most likely first; as many as the request asked for
};

// What was pooled of a sequence: [hidden_size].
struct PooledVector {
  SequenceId sequence;
  std::vector<float> values;
};

// The last stage's result for a StepPlan: one token, or pooled vector, for each
// segment with `sample`, and scores for each segment that wants them, all in
// their order. A large result is sent in parts, all but the last of which have
// `more`: first the scores, maybe of a part of a segment, then the pooled
// vectors, then the tokens.
struct StepResult {
  PlanEpoch epoch;
  BlockId block;
  int64_t step = 0;
  std::vector<SampledToken> tokens;
  std::vector<TokenScores> scores;
  std::vector<PooledVector> pooled;
  bool more = false;
};

}  // namespace sluice
