#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sluice {

// The windows that begin with the tokens that the tokenizer puts before any
// text, which is BOS or nothing.
enum class WindowStart {
  kEach,   // every window begins with them
  kFirst,  // only the first window of a document
  kNone,   // none
};

// The options by which a text is cut for scoring.
//
// A document's tokens are t[0..n), its first ones being the start tokens with
// kFirst. A window holds up to `context` tokens: with kEach the start tokens,
// then t[b..e), where b goes up from 0 in steps of `stride` and e is as large
// as fits, until e is n. In a window, those tokens of t count that no window
// before it held, except a token without a predecessor. So each token is scored
// once, with at least context - stride tokens before it if there are that many.
//
// With stride = context the windows are disjoint. With kFirst this is Hugging
// Face's recipe ("Perplexity of fixed-length models"), except that with a
// smaller stride that recipe weighs a window's mean by one token less than it
// averages over. llama.cpp's perplexity tool is near kEach with disjoint
// windows, but its BOS replaces a window's first token, only the second half of
// each window counts, and the rest at the end does not.
struct WindowOptions {
  int32_t context = 0;
  int32_t stride = 0;
  WindowStart start = WindowStart::kEach;

  // kInvalidArgument unless 1 <= stride <= context and context >= 2, and there
  // is room behind `start_tokens`.
  absl::Status Validate(size_t start_tokens) const;
};

struct ScoreWindow {
  std::vector<int32_t> ids;
  // The tokens ids[first_counted..) count. >= 1, < ids.size().
  int32_t first_counted = 0;
};

// Cuts documents into windows, one after the other. Windows without counted
// tokens are left out. Thread-compatible.
class WindowCutter {
 public:
  // `documents` are tokens without those that the tokenizer adds, which are
  // `start_tokens`. REQUIRES: options.Validate(start_tokens.size()).
  WindowCutter(const WindowOptions& options, std::vector<int32_t> start_tokens,
               std::vector<std::vector<int32_t>> documents);

  // Returns false at the end.
  bool Next(ScoreWindow* window);

  // Tokens of all documents, without start tokens.
  int64_t num_tokens() const { return num_tokens_; }
  // The number of a document's tokens that count.
  int64_t CountedTokens(size_t document) const;

 private:
  const WindowOptions options_;
  std::vector<int32_t> each_;  // the tokens that every window begins with
  std::vector<std::vector<int32_t>> documents_;
  int64_t num_tokens_ = 0;
  size_t document_ = 0;
  int64_t begin_ = 0;
  int64_t counted_until_ = 0;
};

// Sums of the log-probabilities of scored tokens. Thread-compatible.
class ScoreSum {
 public:
  void Add(double logprob);
  int64_t tokens() const { return tokens_; }
  // Sum of -logprob, in nats.
  double nll() const { return nll_; }
  // exp(mean of -logprob); the other its standard error, to first order. NaN
  // without tokens.
  double perplexity() const;
  double perplexity_error() const;

 private:
  int64_t tokens_ = 0;
  double nll_ = 0;
  double mean_ = 0;     // Welford's running mean and
  double squares_ = 0;  // sum of squared deviations
};

// The line of a job that requests the scores of a window's tokens.
std::string ScoreRequestLine(const ScoreWindow& window);

// Adds the scores in the result line of such a request. kInternal if it has
// none, with the request's error if it has one.
absl::Status AddScores(const std::string& line, size_t ids,
                       int32_t first_counted, ScoreSum* sum);

}  // namespace sluice
