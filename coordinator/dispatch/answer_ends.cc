#include "coordinator/dispatch/answer_ends.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text/text.h"

namespace sluice {

AnswerEnds FindAnswerEnds(std::vector<int32_t> of_model,
                          const Tokenizer& tokenizer, int32_t vocab_size) {
  AnswerEnds ends{std::move(of_model), ""};
  std::string note;
  const auto name = [&](int32_t id) {
    const std::string text = tokenizer.IdToToken(id);
    return text.empty() ? absl::StrCat("token ", id)
                        : absl::StrCat(QuoteForMessage(text), " (", id, ")");
  };
  const auto named = tokenizer.special_tokens().find("eos_token");
  if (named != tokenizer.special_tokens().end()) {
    const std::optional<int32_t> id = tokenizer.TokenToId(named->second);
    if (!id || *id >= vocab_size) {
      note = absl::StrCat("; the tokenizer's eos_token ",
                          QuoteForMessage(named->second),
                          " is no token of the model, and ends none");
    } else if (std::find(ends.tokens.begin(), ends.tokens.end(), *id) ==
               ends.tokens.end()) {
      ends.tokens.push_back(*id);
      note = absl::StrCat("; only the tokenizer's eos_token names ", name(*id));
    }
  }
  if (ends.tokens.empty()) {
    ends.text = absl::StrCat(
        "answers end at max_tokens and stop strings only: the model's files "
        "name no end-of-sequence token",
        note);
    return ends;
  }
  ends.text = absl::StrCat("answers end at ",
                           absl::StrJoin(ends.tokens, ", ",
                                         [&](std::string* out, int32_t id) {
                                           absl::StrAppend(out, name(id));
                                         }),
                           note);
  return ends;
}

}  // namespace sluice
