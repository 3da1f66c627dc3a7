#include "runtime/text/tokenizer/models/bpe_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <queue>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"
#include "runtime/text/unicode/unicode.h"

namespace sluice {
namespace {

constexpr absl::string_view kSpaceMark = "\xE2\x96\x81";  // "▁"

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 |
         static_cast<uint32_t>(right);
}

// Up to this many symbols a scan for the best pair beats a heap.
constexpr size_t kFewSymbols = 24;

}  // namespace

absl::StatusOr<std::unique_ptr<BpeModel>> BpeModel::Create(
    Options options, Vocabulary vocabulary, const std::vector<Merge>& merges) {
  std::unique_ptr<BpeModel> model(new BpeModel());
  model->options_ = std::move(options);
  model->vocabulary_ = std::move(vocabulary);
  int32_t max_id = -1;
  for (const auto& [token, id] : model->vocabulary_) {
    max_id = std::max(max_id, id);
  }
  model->tokens_.resize(max_id + 1);
  for (const auto& [token, id] : model->vocabulary_) {
    // The smallest of several tokens with one id is taken, on every run.
    const std::string*& slot = model->tokens_[id];
    if (slot == nullptr || token < *slot) slot = &token;
  }
  const ByteAlphabet& alphabet = GetByteAlphabet();
  for (int byte = 0; byte < 256; ++byte) {
    model->byte_ids_[byte] =
        model->TokenToId(alphabet.text_of_byte[byte]).value_or(-1);
    model->fallback_ids_[byte] =
        model->TokenToId(absl::StrFormat("<0x%02X>", byte)).value_or(-1);
  }
  SLUICE_RETURN_IF_ERROR(model->AddMerges(merges));
  if (model->options_.ignore_merges && model->options_.byte_words) {
    for (const auto& [token, id] : model->vocabulary_) {
      std::string bytes;
      if (AppendBytesOfChars(token, &bytes)) model->words_[bytes] = id;
    }
  }
  return model;
}

absl::Status BpeModel::AddMerges(const std::vector<Merge>& merges) {
  const std::string& prefix = options_.continuing_subword_prefix;
  ranks_.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto& [left, right] = merges[i];
    const auto unknown = [&](absl::string_view token) {
      return InvalidArgument("merges[", i, "]: \"", token,
                             "\" is not in the vocabulary");
    };
    const auto left_id = TokenToId(left);
    if (!left_id) return unknown(left);
    const auto right_id = TokenToId(right);
    if (!right_id) return unknown(right);
    if (right.size() < prefix.size()) return unknown(right);
    const std::string joined = absl::StrCat(left, right.substr(prefix.size()));
    const auto joined_id = TokenToId(joined);
    if (!joined_id) return unknown(joined);
    ranks_[PairKey(*left_id, *right_id)] = {static_cast<uint32_t>(i),
                                            *joined_id};
    if (absl::StartsWith(right, kSpaceMark) && !left.empty()) {
      size_t last = PreviousUtf8(left, left.size());
      before_space_.insert(DecodeUtf8(left, &last));
    }
  }
  cuts_at_space_ = !options_.byte_words && prefix.empty() &&
                   options_.end_of_word_suffix.empty() &&
                   !options_.ignore_merges && TokenToId(kSpaceMark);
  return absl::OkStatus();
}

std::optional<int32_t> BpeModel::TokenToId(absl::string_view token) const {
  const auto it = vocabulary_.find(token);
  if (it == vocabulary_.end()) return std::nullopt;
  return it->second;
}

bool BpeModel::HasId(int32_t id) const {
  return id >= 0 && id <= max_id() && tokens_[id] != nullptr;
}

absl::string_view BpeModel::IdToToken(int32_t id) const {
  return HasId(id) ? absl::string_view(*tokens_[id]) : absl::string_view();
}

const BpeModel::Rank* BpeModel::FindRank(int32_t left, int32_t right) const {
  const auto it = ranks_.find(PairKey(left, right));
  return it == ranks_.end() ? nullptr : &it->second;
}

// A cut is safe before a "▁" if the character before it is a token (so it is no
// unknown one, which might be fused with others) that no merge joins with a
// symbol that begins with "▁".
size_t BpeModel::PartEnd(absl::string_view text) const {
  size_t mark = text.find(kSpaceMark, 1);
  while (mark != absl::string_view::npos) {
    const size_t previous = PreviousUtf8(text, mark);
    size_t pos = previous;
    const char32_t before = DecodeUtf8(text, &pos);
    if (!before_space_.contains(before) &&
        vocabulary_.contains(text.substr(previous, mark - previous))) {
      return mark;
    }
    mark = text.find(kSpaceMark, mark + kSpaceMark.size());
  }
  return text.size();
}

absl::Status BpeModel::Encode(absl::string_view word,
                              std::vector<int32_t>* ids) const {
  if (!cuts_at_space_) return EncodePart(word, ids);
  while (!word.empty()) {
    const size_t end = PartEnd(word);
    SLUICE_RETURN_IF_ERROR(EncodePart(word.substr(0, end), ids));
    word.remove_prefix(end);
  }
  return absl::OkStatus();
}

absl::Status BpeModel::EncodePart(absl::string_view word,
                                  std::vector<int32_t>* ids) const {
  const bool cached = word.size() <= WordCache::kMaxWordBytes;
  const uint64_t hash = cached ? WordCache::Hash(word) : 0;
  if (cached && cache_.Find(word, hash, ids)) return absl::OkStatus();
  if (options_.ignore_merges) {
    const auto& words = options_.byte_words ? words_ : vocabulary_;
    const auto it = words.find(word);
    if (it != words.end()) {
      ids->push_back(it->second);
      return absl::OkStatus();
    }
  }
  thread_local std::vector<int32_t> symbols;
  symbols.clear();
  SLUICE_RETURN_IF_ERROR(Symbols(word, &symbols));
  Join(&symbols);
  ids->insert(ids->end(), symbols.begin(), symbols.end());
  if (cached) cache_.Put(word, hash, symbols.data(), symbols.size());
  if (symbols.capacity() > (1u << 20)) std::vector<int32_t>().swap(symbols);
  return absl::OkStatus();
}

absl::Status BpeModel::Symbols(absl::string_view word,
                               std::vector<int32_t>* ids) const {
  if (!options_.byte_words) return CharSymbols(word, ids);
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    if (id < 0) {
      ids->clear();
      std::string text;
      AppendByteChars(word, &text);
      return CharSymbols(text, ids);
    }
    ids->push_back(id);
  }
  return absl::OkStatus();
}

absl::Status BpeModel::CharSymbols(absl::string_view word,
                                   std::vector<int32_t>* ids) const {
  // An unknown character waits here, as the next one may be fused with it. Byte
  // tokens of a later character go before it, as in Hugging Face's.
  int32_t unknown = -1;
  const bool affixes = !options_.continuing_subword_prefix.empty() ||
                       !options_.end_of_word_suffix.empty();
  std::string spelled;
  for (size_t pos = 0; pos < word.size();) {
    const size_t begin = pos;
    pos += Utf8Length(word[pos]);
    absl::string_view token = word.substr(begin, pos - begin);
    if (affixes) {
      spelled = absl::StrCat(
          begin > 0 ? options_.continuing_subword_prefix : "", token,
          pos == word.size() ? options_.end_of_word_suffix : "");
      token = spelled;
    }
    if (const auto id = TokenToId(token)) {
      if (unknown >= 0) ids->push_back(unknown);
      unknown = -1;
      ids->push_back(*id);
      continue;
    }
    if (options_.byte_fallback) {
      const auto fallback = [&](char c) {
        return fallback_ids_[static_cast<unsigned char>(c)];
      };
      if (std::all_of(token.begin(), token.end(),
                      [&](char c) { return fallback(c) >= 0; })) {
        for (const char c : token) ids->push_back(fallback(c));
        continue;
      }
    }
    if (!options_.has_unk_token) continue;
    if (unknown >= 0 && options_.fuse_unk) continue;
    if (unknown >= 0) ids->push_back(unknown);
    unknown = TokenToId(options_.unk_token).value_or(-1);
    if (unknown < 0) {
      return InvalidArgument("no token for \"", token, "\": unk_token \"",
                             options_.unk_token, "\" is not in the vocabulary");
    }
  }
  if (unknown >= 0) ids->push_back(unknown);
  return absl::OkStatus();
}

void BpeModel::Join(std::vector<int32_t>* ids) const {
  if (ids->size() < 2) return;
  if (ids->size() <= kFewSymbols) {
    JoinFew(ids);
  } else {
    JoinMany(ids);
  }
}

void BpeModel::JoinFew(std::vector<int32_t>* ids) const {
  constexpr Rank kNone{UINT32_MAX, -1};
  int32_t* id = ids->data();
  size_t count = ids->size();
  Rank ranks[kFewSymbols];  // of (i, i + 1)
  const auto look_up = [&](size_t i) {
    const Rank* rank = FindRank(id[i], id[i + 1]);
    return rank == nullptr ? kNone : *rank;
  };
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i].rank < ranks[best].rank) best = i;
    }
    if (ranks[best].id < 0) break;
    id[best] = ranks[best].id;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      id[i] = id[i + 1];
      ranks[i] = ranks[i + 1];
    }
    --count;
    if (best + 1 < count) ranks[best] = look_up(best);
    if (best > 0) ranks[best - 1] = look_up(best - 1);
  }
  ids->resize(count);
}

void BpeModel::JoinMany(std::vector<int32_t>* ids) const {
  constexpr uint32_t kNone = UINT32_MAX;
  struct Symbol {
    int32_t id;  // -1: joined with the previous symbol
    uint32_t previous;
    uint32_t next;
  };
  struct Candidate {
    uint32_t rank;
    uint32_t pos;
    int32_t id;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : pos > other.pos;
    }
  };
  const auto size = static_cast<uint32_t>(ids->size());
  std::vector<Symbol> symbols(size);
  std::vector<Candidate> first;
  first.reserve(size);
  for (uint32_t i = 0; i < size; ++i) {
    symbols[i] = {(*ids)[i], i == 0 ? kNone : i - 1,
                  i + 1 == size ? kNone : i + 1};
    if (i + 1 == size) break;
    if (const Rank* rank = FindRank((*ids)[i], (*ids)[i + 1])) {
      first.push_back({rank->rank, i, rank->id});
    }
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(
      std::greater<>(), std::move(first));
  const auto push = [&](uint32_t left, uint32_t right) {
    if (const Rank* rank = FindRank(symbols[left].id, symbols[right].id)) {
      queue.push({rank->rank, left, rank->id});
    }
  };
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[top.pos];
    if (left.id < 0 || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    const Rank* rank = FindRank(left.id, right.id);
    if (rank == nullptr || rank->id != top.id) continue;  // out of date
    left.id = top.id;
    right.id = -1;
    left.next = right.next;
    if (left.next != kNone) {
      symbols[left.next].previous = top.pos;
      push(top.pos, left.next);
    }
    if (left.previous != kNone) push(left.previous, top.pos);
  }
  ids->clear();
  for (uint32_t i = 0; i != kNone; i = symbols[i].next) {
    ids->push_back(symbols[i].id);
  }
}

}  // namespace sluice
