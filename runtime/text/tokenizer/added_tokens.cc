#include "runtime/text/tokenizer/added_tokens.h"

#include <algorithm>

#include "common/status_macros.h"
#include "common/text/utf8.h"
#include "runtime/text/unicode/unicode.h"

namespace sluice {

absl::StatusOr<AddedToken> AddedTokenFromJson(const JsonPart& part,
                                              bool special) {
  AddedToken token;
  SLUICE_ASSIGN_OR_RETURN(token.content, part.GetString("content"));
  SLUICE_ASSIGN_OR_RETURN(token.special, part.BoolOr("special", special));
  SLUICE_ASSIGN_OR_RETURN(token.normalized,
                          part.BoolOr("normalized", !token.special));
  SLUICE_ASSIGN_OR_RETURN(token.single_word, part.BoolOr("single_word", false));
  SLUICE_ASSIGN_OR_RETURN(token.lstrip, part.BoolOr("lstrip", false));
  SLUICE_ASSIGN_OR_RETURN(token.rstrip, part.BoolOr("rstrip", false));
  return token;
}

void Trie::Add(absl::string_view key, int32_t value) {
  if (key.empty()) return;
  uint32_t node = 0;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    const auto [it, added] = next_.try_emplace(
        uint64_t{node} << 8 | byte, static_cast<uint32_t>(value_.size()));
    if (added) value_.push_back(-1);
    node = it->second;
  }
  if (value_[node] < 0) value_[node] = value;
  first_[static_cast<unsigned char>(key[0])] = true;
}

std::optional<Trie::Match> Trie::Find(absl::string_view text,
                                      size_t pos) const {
  if (next_.empty()) return std::nullopt;
  for (; pos < text.size(); ++pos) {
    if (!first_[static_cast<unsigned char>(text[pos])]) continue;
    Match longest{pos, pos, -1};
    uint32_t node = 0;
    for (size_t i = pos; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      const auto it = next_.find(uint64_t{node} << 8 | byte);
      if (it == next_.end()) break;
      node = it->second;
      if (value_[node] >= 0) longest = {pos, i + 1, value_[node]};
    }
    if (longest.value >= 0) return longest;
  }
  return std::nullopt;
}

void AddedTokens::Add(const std::vector<AddedToken>& tokens,
                      const Model& model) {
  int32_t next_id = std::max(max_id_ + 1, model.size);
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    std::optional<int32_t> id = TokenToId(token.content);
    if (!id) id = model.token_to_id(token.content);
    if (!id) id = next_id++;
    ids_[token.content] = *id;
    tokens_[*id] = token;
    max_id_ = std::max(max_id_, *id);
    if (token.special) special_.insert(token.content);
  }
}

absl::Status AddedTokens::Finish(const Normalizer& normalizer) {
  std::vector<int32_t> ids;
  for (const auto& [id, token] : tokens_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const int32_t id : ids) {
    const AddedToken& token = tokens_.at(id);
    if (!token.normalized) {
      raw_.Add(token.content, id);
      continue;
    }
    NormalizedText content{token.content, 0};
    if (normalizer != nullptr) {
      SLUICE_RETURN_IF_ERROR(normalizer(&content));
    }
    normalized_.Add(content.text, id);
    if (content.text != token.content) normalized_forms_[id] = content.text;
  }
  return absl::OkStatus();
}

std::optional<int32_t> AddedTokens::TokenToId(absl::string_view token) const {
  const auto it = ids_.find(token);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

const AddedToken* AddedTokens::IdToToken(int32_t id) const {
  const auto it = tokens_.find(id);
  return it == tokens_.end() ? nullptr : &it->second;
}

absl::string_view AddedTokens::DecodedForm(int32_t id,
                                           const AddedToken& token) const {
  const auto it = normalized_forms_.find(id);
  return it == normalized_forms_.end() ? absl::string_view(token.content)
                                       : absl::string_view(it->second);
}

void AddedTokens::Split(const Piece& piece, const Trie& trie,
                        std::vector<Piece>* out) const {
  const absl::string_view text = piece.text;
  if (text.empty()) return;
  size_t done = 0;
  size_t search = 0;
  while (const auto match = trie.Find(text, search)) {
    search = match->end;
    size_t begin = match->begin;
    size_t end = match->end;
    const AddedToken& token = tokens_.at(match->value);
    if (token.single_word) {
      size_t before = begin > 0 ? PreviousUtf8(text, begin) : 0;
      size_t behind = end;
      if ((begin > 0 && IsWordChar(DecodeUtf8(text, &before))) ||
          (end < text.size() && IsWordChar(DecodeUtf8(text, &behind)))) {
        continue;
      }
    }
    if (token.lstrip) {
      while (begin > done) {
        const size_t previous = PreviousUtf8(text, begin);
        size_t pos = previous;
        if (!IsWhitespace(DecodeUtf8(text, &pos))) break;
        begin = previous;
      }
      begin = std::max(begin, done);
    }
    if (token.rstrip) {
      while (end < text.size()) {
        size_t pos = end;
        if (!IsWhitespace(DecodeUtf8(text, &pos))) break;
        end = pos;
      }
    }
    if (done < begin) out->push_back(Slice(piece, done, begin));
    Piece found = Slice(piece, begin, end);
    found.token = match->value;
    out->push_back(found);
    done = end;
  }
  if (done < text.size()) out->push_back(Slice(piece, done, text.size()));
}

}  // namespace sluice
