#include "runtime/text/tokenizer/models/token_model.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "common/status_macros.h"
#include "runtime/text/tokenizer/models/bpe_model.h"
#include "runtime/text/tokenizer/models/unigram_model.h"

namespace sluice {
namespace {

// Files from before there were several types do not name theirs: what they
// hold tells it.
absl::StatusOr<std::string> TypeOf(const JsonPart& part) {
  SLUICE_ASSIGN_OR_RETURN(const auto type, part.Find("type"));
  if (type) return type->String();
  SLUICE_ASSIGN_OR_RETURN(const auto merges, part.Find("merges"));
  if (merges) return "BPE";
  SLUICE_ASSIGN_OR_RETURN(const auto vocab, part.Find("vocab"));
  if (vocab && vocab->value().is_array()) return "Unigram";
  return part.Unimplemented("is neither a BPE nor a Unigram model");
}

}  // namespace

absl::StatusOr<bool> CanReadBytes(const JsonPart& part) {
  SLUICE_ASSIGN_OR_RETURN(const std::string type, TypeOf(part));
  if (type != "BPE") return false;
  return BpeModel::CanReadBytes(part);
}

absl::StatusOr<std::unique_ptr<TokenModel>> TokenModelFromJson(
    const JsonPart& part, bool byte_words) {
  SLUICE_ASSIGN_OR_RETURN(const std::string type, TypeOf(part));
  if (type == "BPE") return BpeModel::FromJson(part, byte_words);
  if (type == "Unigram") return UnigramModel::FromJson(part);
  SLUICE_ASSIGN_OR_RETURN(const JsonPart type_part, part.Get("type"));
  if (type == "WordPiece") {
    return type_part.Unimplemented(
        "model \"WordPiece\" is not supported: it is BERT's, and no model that "
        "generates text here uses it");
  }
  return type_part.Unimplemented(
      "model \"", type, "\" is not supported, only BPE and Unigram are");
}

}  // namespace sluice
