#include "server/cli/run/score_windows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/text/text.h"

namespace sluice {

absl::Status WindowOptions::Validate(size_t start_tokens) const {
  if (context < 2) {
    return InvalidArgument("--context ", context,
                           " is too small: a token is scored "
                           "given another one, so that it must be at least 2");
  }
  if (stride < 1 || stride > context) {
    return InvalidArgument("--stride ", stride, " is not within 1..", context,
                           " (--context)");
  }
  if (start == WindowStart::kEach &&
      start_tokens >= static_cast<size_t>(context)) {
    return InvalidArgument(
        "--context ", context, " has no room behind the ", start_tokens,
        " tokens that the tokenizer puts before a text; see --bos");
  }
  return absl::OkStatus();
}

WindowCutter::WindowCutter(const WindowOptions& options,
                           std::vector<int32_t> start_tokens,
                           std::vector<std::vector<int32_t>> documents)
    : options_(options), documents_(std::move(documents)) {
  for (std::vector<int32_t>& tokens : documents_) {
    num_tokens_ += static_cast<int64_t>(tokens.size());
    if (options_.start == WindowStart::kFirst) {
      tokens.insert(tokens.begin(), start_tokens.begin(), start_tokens.end());
    }
  }
  if (options_.start == WindowStart::kEach) each_ = std::move(start_tokens);
}

bool WindowCutter::Next(ScoreWindow* window) {
  const auto lead = static_cast<int64_t>(each_.size());
  const int64_t room = options_.context - lead;
  for (;;) {
    if (document_ == documents_.size()) return false;
    const std::vector<int32_t>& tokens = documents_[document_];
    const auto size = static_cast<int64_t>(tokens.size());
    const int64_t begin = begin_;
    const int64_t end = std::min(begin + room, size);
    const int64_t first =
        lead + std::max<int64_t>(counted_until_ - begin, lead == 0 ? 1 : 0);
    if (end == size) {
      ++document_;
      begin_ = counted_until_ = 0;
    } else {
      begin_ += std::min<int64_t>(options_.stride, room);
      counted_until_ = end;
    }
    if (first >= lead + end - begin) continue;
    window->ids = each_;
    window->ids.insert(window->ids.end(), tokens.begin() + begin,
                       tokens.begin() + end);
    window->first_counted = static_cast<int32_t>(first);
    return true;
  }
}

int64_t WindowCutter::CountedTokens(size_t document) const {
  const auto size = static_cast<int64_t>(documents_[document].size());
  if (!each_.empty()) return size;
  // A counted token at a window's start lacks a predecessor; disjoint windows
  // each begin with one, else only the first window does.
  if (options_.stride < options_.context) return std::max<int64_t>(size - 1, 0);
  return size - (size + options_.context - 1) / options_.context;
}

void ScoreSum::Add(double logprob) {
  const double nll = -logprob;
  ++tokens_;
  nll_ += nll;
  const double before = nll - mean_;
  mean_ += before / static_cast<double>(tokens_);
  squares_ += before * (nll - mean_);
}

double ScoreSum::perplexity() const {
  if (tokens_ == 0) return std::numeric_limits<double>::quiet_NaN();
  return std::exp(nll_ / static_cast<double>(tokens_));
}

double ScoreSum::perplexity_error() const {
  if (tokens_ < 2) return std::numeric_limits<double>::quiet_NaN();
  const auto n = static_cast<double>(tokens_);
  return perplexity() * std::sqrt(squares_ / (n - 1) / n);
}

std::string ScoreRequestLine(const ScoreWindow& window) {
  return absl::StrCat("{\"prompt\":[", absl::StrJoin(window.ids, ","),
                      "],\"max_tokens\":0,\"echo\":true,\"logprobs\":0}\n");
}

absl::Status AddScores(const std::string& line, size_t ids,
                       int32_t first_counted, ScoreSum* sum) {
  const nlohmann::json result =
      nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  try {
    if (const auto& error = result.at("error"); !error.is_null()) {
      return Internal("scoring failed: ",
                      error.at("message").get<std::string>());
    }
    const nlohmann::json& logprobs = result.at("response")
                                         .at("body")
                                         .at("choices")
                                         .at(0)
                                         .at("logprobs")
                                         .at("token_logprobs");
    if (logprobs.size() != ids) {
      return Internal("a result has ", logprobs.size(),
                      " log-probabilities for a window of ", ids, " tokens");
    }
    for (size_t i = first_counted; i < ids; ++i) {
      sum->Add(logprobs[i].get<double>());
    }
  } catch (const nlohmann::json::exception& error) {
    return Internal("a result line is no scored prompt: ",
                    JsonErrorText(error.what()));
  }
  return absl::OkStatus();
}

}  // namespace sluice
