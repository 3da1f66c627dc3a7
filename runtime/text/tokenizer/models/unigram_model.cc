#include "runtime/text/tokenizer/models/unigram_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"

namespace sluice {
namespace {

// An unknown character costs so much more than the worst token.
constexpr double kUnknownPenalty = 10.0;
// A way that has come so far is given out at the next place that all ways
// share, so that the memory does not grow with the word.
constexpr size_t kGiveOutBytes = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<UnigramModel>> UnigramModel::Create(
    Options options, Vocabulary vocabulary) {
  if (vocabulary.size() > size_t{kMaxId} + 1) {
    return InvalidArgument("more than ", kMaxId + 1, " tokens");
  }
  std::unique_ptr<UnigramModel> model(new UnigramModel());
  model->options_ = options;
  model->vocabulary_ = std::move(vocabulary);
  if (options.unk_id && !model->HasId(*options.unk_id)) {
    return InvalidArgument("unk_id ", *options.unk_id,
                           " is not in the vocabulary");
  }
  double min_score = std::numeric_limits<double>::infinity();
  std::vector<PrefixTrie::Key> keys;
  for (size_t i = 0; i < model->vocabulary_.size(); ++i) {
    const auto& [token, score] = model->vocabulary_[i];
    if (!std::isfinite(score)) {
      return InvalidArgument("the score of \"", token, "\" is not a number");
    }
    const auto id = static_cast<int32_t>(i);
    model->ids_[token] = id;
    keys.emplace_back(token, id);
    min_score = std::min(min_score, score);
  }
  model->unk_score_ = min_score - kUnknownPenalty;
  model->trie_ = PrefixTrie(std::move(keys));
  for (int byte = 0; byte < 256; ++byte) {
    model->fallback_ids_[byte] =
        model->TokenToId(absl::StrFormat("<0x%02X>", byte)).value_or(-1);
  }
  return model;
}

absl::StatusOr<std::unique_ptr<UnigramModel>> UnigramModel::FromJson(
    const JsonPart& part) {
  Options options;
  SLUICE_ASSIGN_OR_RETURN(options.byte_fallback,
                          part.BoolOr("byte_fallback", false));
  SLUICE_ASSIGN_OR_RETURN(const auto unk, part.Find("unk_id"));
  if (unk) {
    SLUICE_ASSIGN_OR_RETURN(const int64_t id, unk->Int(0, kMaxId));
    options.unk_id = static_cast<int32_t>(id);
  }
  SLUICE_ASSIGN_OR_RETURN(const JsonPart list, part.Get("vocab"));
  SLUICE_RETURN_IF_ERROR(list.ExpectArray());
  Vocabulary vocabulary;
  vocabulary.reserve(list.value().size());
  for (size_t i = 0; i < list.value().size(); ++i) {
    const nlohmann::json& entry = list.value()[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() ||
        !entry[1].is_number()) {
      return list.At(i).Invalid("is not [token, score]");
    }
    vocabulary.emplace_back(entry[0].get<std::string>(),
                            entry[1].get<double>());
  }
  return Annotate(Create(options, std::move(vocabulary)), part.where());
}

std::optional<int32_t> UnigramModel::TokenToId(absl::string_view token) const {
  const auto it = ids_.find(token);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

absl::string_view UnigramModel::IdToToken(int32_t id) const {
  return HasId(id) ? absl::string_view(vocabulary_[id].first)
                   : absl::string_view();
}

absl::Status UnigramModel::Encode(absl::string_view word,
                                  std::vector<int32_t>* ids) const {
  if (word.size() > WordCache::kMaxWordBytes) return Search(word, ids);
  const uint64_t hash = WordCache::Hash(word);
  if (cache_.Find(word, hash, ids)) return absl::OkStatus();
  const size_t before = ids->size();
  SLUICE_RETURN_IF_ERROR(Search(word, ids));
  cache_.Put(word, hash, ids->data() + before, ids->size() - before);
  return absl::OkStatus();
}

void UnigramModel::AppendUnknown(absl::string_view text,
                                 std::vector<int32_t>* ids) const {
  // A run that is a token by chance is that token, as in Hugging Face's.
  if (const auto id = TokenToId(text)) {
    ids->push_back(*id);
    return;
  }
  const auto fallback = [&](char c) {
    return fallback_ids_[static_cast<unsigned char>(c)];
  };
  if (options_.byte_fallback &&
      std::all_of(text.begin(), text.end(),
                  [&](char c) { return fallback(c) >= 0; })) {
    for (const char c : text) ids->push_back(fallback(c));
    return;
  }
  ids->push_back(*options_.unk_id);
}

absl::Status UnigramModel::Extend(absl::string_view word, size_t at,
                                  std::vector<Node>* way, size_t origin,
                                  size_t* end) const {
  const size_t char_length = Utf8Length(word[at]);
  const double score = (*way)[at - origin].score;
  bool has_char = false;
  const auto node_at = [&](size_t length) -> Node& {
    const size_t index = at - origin + length;
    if (index >= way->size()) way->resize(index + 1, {0, -1, 0});
    *end = std::max(*end, at + length);
    return (*way)[index];
  };
  trie_.ForEachPrefix(word.substr(at), [&](size_t length, int32_t id) {
    Node& node = node_at(length);
    const double candidate = vocabulary_[id].second + score;
    if (node.length == 0 || candidate > node.score) {
      node = {candidate, id, static_cast<uint32_t>(length)};
    }
    has_char = has_char || length == char_length;
  });
  if (has_char) return absl::OkStatus();
  Node& node = node_at(char_length);
  const double candidate = unk_score_ + score;
  if (node.length == 0 || candidate > node.score) {
    if (!options_.unk_id) {
      return InvalidArgument("no token for \"", word.substr(at, char_length),
                             "\", and the model has no unk_id");
    }
    node = {candidate, *options_.unk_id, static_cast<uint32_t>(char_length)};
  }
  return absl::OkStatus();
}

absl::Status UnigramModel::Search(absl::string_view word,
                                  std::vector<int32_t>* ids) const {
  thread_local std::vector<Node> way;
  thread_local std::vector<Node> tokens;
  size_t origin = 0;         // the place of way[0]
  size_t end = 0;            // where the longest token so far ends
  size_t unknown_begin = 0;  // of the run of unknown characters that goes on
  way.assign(1, {0, -1, 0});
  // Appends the tokens of the best way from the origin to `to`.
  const auto give_out = [&](size_t to) {
    tokens.clear();
    for (size_t at = to; at > origin; at -= tokens.back().length) {
      tokens.push_back(way[at - origin]);
    }
    size_t at = origin;
    while (!tokens.empty()) {
      const Node& node = tokens.back();
      if (node.id != options_.unk_id) {
        if (unknown_begin < at) {
          AppendUnknown(word.substr(unknown_begin, at - unknown_begin), ids);
        }
        ids->push_back(node.id);
        unknown_begin = at + node.length;
      }
      at += node.length;
      tokens.pop_back();
    }
  };
  for (size_t at = 0; at < word.size(); at += Utf8Length(word[at])) {
    if (at == end && at - origin > kGiveOutBytes) {
      // The score is carried on, because a sum that began anew would be
      // rounded in another way.
      const double score = way[at - origin].score;
      give_out(at);
      origin = at;
      way.assign(1, {score, -1, 0});
    }
    SLUICE_RETURN_IF_ERROR(Extend(word, at, &way, origin, &end));
  }
  give_out(word.size());
  if (unknown_begin < word.size()) {
    AppendUnknown(word.substr(unknown_begin), ids);
  }
  if (way.capacity() > (1u << 18)) std::vector<Node>().swap(way);
  return absl::OkStatus();
}

}  // namespace sluice
