#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/types.h"
#include "coordinator/jobs/requests/json_line.h"
#include "coordinator/jobs/results/token_texts.h"
#include "coordinator/request.h"
#include "coordinator/store/job_record.h"

namespace sluice {

// Formats a result line, without its newline, in OpenAI's batch output format:
//   {"id", "custom_id", "response": {"status_code", "request_id", "body"},
//    "error": null}
// with a chat.completion or text_completion as the body, with a choice for each
// of the line's requests; or a list of embeddings. Always valid UTF-8 and
// JSON on one line, for readers that know more ends of lines than "\n", too. An
// infinite logprob becomes -9999, as OpenAI does. With echo, the
// completion's logprobs begin with the prompt's tokens, those of the tokenizer
// itself included; the first has null for its own, as nothing predicts it. A
// text_offset counts characters of the answer's text. Each token that usage
// counts has its entry: that of an end-of-sequence token, which has no part in
// the text, lies at the text's end. With `prompt_details`, the usage of a
// completion says how many tokens of its prompt other requests had computed
// (prompt_tokens_details.cached_tokens), which depends on more than the
// request.
std::string FormatAnswer(const FinishedLine& line, absl::string_view model,
                         absl::Time created, TokenTexts* tokens,
                         bool prompt_details = false);

// HTTP's codes of a request that was refused, and of one that failed.
inline constexpr int kRefused = 400, kFailed = 500;

// Formats the line of a request without an answer. Its "error" has code,
// message (which starts with "line N: "), param and line. Its "response" has
// the same in its body with `http_status`, as OpenAI's batches do; it is null
// if that is 0, of a request that nobody answered. `line` is Request::line.
std::string FormatError(JobId job, int64_t index, absl::string_view custom_id,
                        const LineError& error, int http_status,
                        int64_t line = 0);

// Returns the error of a failed generation: kCancelled becomes
// "batch_cancelled", other codes their name in lower case.
LineError ErrorOfStatus(const absl::Status& status);

// Formats the result for the store, with the line of an answer or an error,
// without replays. The error is that of the first request that has one. An
// answer of more than `max_bytes` becomes an error.
StoredResult FormatResult(const FinishedLine& line, absl::string_view model,
                          absl::Time created, int64_t max_bytes,
                          TokenTexts* tokens, bool prompt_details = false);

}  // namespace sluice
