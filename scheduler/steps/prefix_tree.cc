#include "scheduler/steps/prefix_tree.h"

#include <algorithm>
#include <cassert>
#include <tuple>
#include <utility>

namespace sluice {

struct PrefixTree::Node {
  int64_t id = 0;
  Node* parent = nullptr;
  int32_t begin = 0, end = 0;   // pages of the path
  std::vector<int32_t> tokens;  // of its pages
  // By the tokens of their first pages.
  std::map<std::vector<int32_t>, std::unique_ptr<Node>> children;
  int64_t ends = 0;     // sequences of which it is the leaf
  int64_t waiting = 0;  // sequences that wait and whose path it is on
  int64_t sharing = 0;  // running ones that share its pages
  SequenceId maker;     // if `made`: the sequence that computes its pages
  bool made = false;
  bool reserved = false;
  bool kept = false;
  SequenceId prefix;  // by which it is kept
  int64_t used = 0;   // when that was last shared

  int32_t pages() const { return end - begin; }
  bool is_trees() const { return reserved || kept; }
};

PrefixTree::PrefixTree(int32_t page_tokens)
    : page_tokens_(page_tokens), root_(std::make_unique<Node>()) {}
PrefixTree::~PrefixTree() = default;
PrefixTree::PrefixTree(PrefixTree&&) noexcept = default;
PrefixTree& PrefixTree::operator=(PrefixTree&&) noexcept = default;

template <typename Fn>
void PrefixTree::ForEachOnPath(Node* leaf, Fn fn) {
  std::vector<Node*> path;
  for (Node* node = leaf; node->parent != nullptr; node = node->parent) {
    path.push_back(node);
  }
  for (auto node = path.rbegin(); node != path.rend(); ++node) fn(**node);
}

PrefixTree::Node* PrefixTree::ChildOf(const Node& node,
                                      std::span<const int32_t> tokens) const {
  const auto first = tokens.first(static_cast<size_t>(page_tokens_));
  const auto child = node.children.find({first.begin(), first.end()});
  return child == node.children.end() ? nullptr : child->second.get();
}

namespace {

// Returns the whole pages that both begin with.
int32_t CommonPages(std::span<const int32_t> a, std::span<const int32_t> b,
                    int32_t page_tokens) {
  const auto size = std::min(a.size(), b.size());
  const auto end =
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(size),
                    b.begin())
          .first;
  return static_cast<int32_t>((end - a.begin()) / page_tokens);
}

}  // namespace

void PrefixTree::Add(SequenceId id, std::span<const int32_t> tokens) {
  assert(!sequences_.contains(id));
  tokens = tokens.first(tokens.size() - tokens.size() % page_tokens_);
  if (tokens.empty()) return;
  Node* node = root_.get();
  while (!tokens.empty()) {
    Node* child = ChildOf(*node, tokens);
    if (child == nullptr) {
      auto added = std::make_unique<Node>();
      child = added.get();
      child->id = ++last_node_;
      child->parent = node;
      child->begin = node->end;
      child->end =
          node->end + static_cast<int32_t>(tokens.size()) / page_tokens_;
      child->tokens.assign(tokens.begin(), tokens.end());
      node->children.emplace(
          std::vector<int32_t>(tokens.begin(), tokens.begin() + page_tokens_),
          std::move(added));
    } else {
      const int32_t common = CommonPages(tokens, child->tokens, page_tokens_);
      if (common < child->pages()) child = Split(child, child->begin + common);
    }
    tokens = tokens.subspan(child->tokens.size());
    node = child;
  }
  ++node->ends;
  ForEachOnPath(node, [](Node& n) { ++n.waiting; });
  sequences_[id] = {.leaf = node};
}

PrefixTree::Node* PrefixTree::Split(Node* node, int32_t page) {
  const auto at = node->tokens.begin() +
                  static_cast<ptrdiff_t>(page - node->begin) * page_tokens_;
  auto upper = std::make_unique<Node>();
  Node* const result = upper.get();
  upper->id = ++last_node_;
  upper->parent = node->parent;
  upper->begin = node->begin;
  upper->end = page;
  upper->tokens.assign(node->tokens.begin(), at);
  upper->waiting = node->waiting;
  upper->sharing = node->sharing;
  upper->maker = node->maker;
  upper->made = node->made;
  upper->reserved = node->reserved;
  upper->kept = node->kept;
  upper->used = node->used;
  if (upper->made) made_[upper->id] = result;
  if (upper->kept) {
    kept_[upper->id] = result;
    upper->prefix = NewPrefix();
    keeps_.push_back({upper->prefix, {node->prefix, page * page_tokens_}});
  }
  std::unique_ptr<Node>& place = node->parent->children.at(
      {node->tokens.begin(), node->tokens.begin() + page_tokens_});
  std::unique_ptr<Node> lower = std::exchange(place, std::move(upper));
  lower->tokens.erase(lower->tokens.begin(), at);
  lower->begin = page;
  lower->parent = result;
  std::vector<int32_t> first(lower->tokens.begin(),
                             lower->tokens.begin() + page_tokens_);
  result->children.emplace(std::move(first), std::move(lower));
  return result;
}

// Takes nodes away, from this one upwards, that nobody needs.
void PrefixTree::Prune(Node* node) {
  while (node->parent != nullptr && node->ends == 0 && node->children.empty() &&
         !node->kept) {
    Node* const parent = node->parent;
    made_.erase(node->id);
    parent->children.erase(
        {node->tokens.begin(), node->tokens.begin() + page_tokens_});
    node = parent;
  }
}

PrefixTree::Match PrefixTree::Find(SequenceId id) const {
  Match match;
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return match;
  bool kept = true, free = true, coming = true;
  ForEachOnPath(it->second.leaf, [&](const Node& node) {
    kept = kept && node.kept;
    if (kept) {
      match.pages = node.end;
      match.source = node.prefix;
      return;
    }
    free = free && !node.made && node.waiting > 1;
    coming = coming && node.made;
    if (free) match.to_reserve += node.pages();
    if (!coming) return;
    match.coming_tokens += node.waiting * node.pages() * page_tokens_;
  });
  return match;
}

void PrefixTree::Admit(SequenceId id, const Match& match) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  Sequence& sequence = it->second;
  sequence.running = true;
  sequence.shared = match.pages + match.to_reserve;
  pages_ += match.to_reserve;
  ++uses_;
  bool makes = true;
  ForEachOnPath(sequence.leaf, [&](Node& node) {
    --node.waiting;
    if (node.end <= sequence.shared) {
      ++node.sharing;
      node.used = uses_;
      if (node.kept) return;
      node.reserved = true;
    }
    makes = makes && !node.made && !node.kept;
    if (!makes) return;
    node.made = true;
    node.maker = id;
    made_[node.id] = &node;
  });
}

void PrefixTree::Remove(SequenceId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  const Sequence sequence = it->second;
  sequences_.erase(it);
  --sequence.leaf->ends;
  ForEachOnPath(sequence.leaf, [&](Node& node) {
    if (!sequence.running) --node.waiting;
    if (sequence.running && node.end <= sequence.shared) --node.sharing;
    if (!node.made || node.maker != id) return;
    if (node.reserved) pages_ -= node.pages();
    node.made = node.reserved = false;
    made_.erase(node.id);
  });
  Prune(sequence.leaf);
}

PrefixTree::Candidate PrefixTree::CandidateOf(const Node& node) {
  return {node.id, node.maker, node.end, node.reserved ? 0 : node.pages()};
}

std::vector<PrefixTree::Candidate> PrefixTree::Candidates() const {
  std::vector<Candidate> candidates;
  for (const auto& [id, node] : made_) {
    if (node->waiting > 0) candidates.push_back(CandidateOf(*node));
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.end_pages < b.end_pages;
                   });
  return candidates;
}

std::vector<PrefixTree::Candidate> PrefixTree::Candidates(
    SequenceId maker) const {
  std::vector<Candidate> candidates;
  const auto it = sequences_.find(maker);
  if (it == sequences_.end()) return candidates;
  ForEachOnPath(it->second.leaf, [&](const Node& node) {
    if (!node.made || node.maker != maker || node.waiting == 0) return;
    candidates.push_back(CandidateOf(node));
  });
  return candidates;
}

bool PrefixTree::MayKeep(const Candidate& candidate) const {
  const Node& node = *made_.at(candidate.node);
  return (node.parent->parent == nullptr || node.parent->kept) &&
         sequences_.at(node.maker).shared >= node.begin;
}

void PrefixTree::Keep(const Candidate& candidate) {
  assert(MayKeep(candidate));
  Node& node = *made_.at(candidate.node);
  Sequence& maker = sequences_.at(node.maker);
  if (!node.reserved) {
    pages_ += node.pages();
    maker.shared = node.end;
    ++node.sharing;
  }
  node.prefix = NewPrefix();
  keeps_.push_back({node.prefix, {node.maker, node.end * page_tokens_}});
  node.made = node.reserved = false;
  node.kept = true;
  node.used = ++uses_;
  made_.erase(node.id);
  kept_[node.id] = &node;
}

void PrefixTree::Refuse(const Candidate& candidate) {
  Node& node = *made_.at(candidate.node);
  assert(!node.reserved);
  node.made = false;
  made_.erase(node.id);
}

void PrefixTree::GiveUp(Node* node) {
  pages_ -= node->pages();
  releases_.push_back(node->prefix);
  node->kept = false;
  kept_.erase(node->id);
  Prune(node);
}

bool PrefixTree::Evict(SequenceId spare, bool wanted) {
  std::vector<int64_t> spared;
  if (const auto it = sequences_.find(spare); it != sequences_.end()) {
    ForEachOnPath(it->second.leaf,
                  [&](const Node& node) { spared.push_back(node.id); });
  }
  Node* best = nullptr;
  for (const auto& [id, node] : kept_) {
    if (node->sharing > 0 || (node->waiting > 0 && !wanted)) continue;
    if (std::find(spared.begin(), spared.end(), id) != spared.end()) continue;
    const bool has_below =
        std::any_of(node->children.begin(), node->children.end(),
                    [](const auto& child) { return child.second->is_trees(); });
    if (has_below) continue;
    const auto worth = [](const Node& n) {
      return std::make_tuple(n.waiting > 0, n.used, n.id);
    };
    if (best == nullptr || worth(*node) < worth(*best)) best = node;
  }
  if (best == nullptr) return false;
  GiveUp(best);
  return true;
}

void PrefixTree::EvictAll() {
  assert(sequences_.empty());
  // The lowest ones first, for what lies above them is pruned with them.
  std::vector<Node*> lowest_first;
  for (const auto& [id, node] : kept_) lowest_first.push_back(node);
  std::stable_sort(
      lowest_first.begin(), lowest_first.end(),
      [](const Node* a, const Node* b) { return a->end > b->end; });
  for (Node* const node : lowest_first) GiveUp(node);
}

std::vector<KeptPrefix> PrefixTree::TakeKeeps() {
  return std::exchange(keeps_, {});
}

std::vector<SequenceId> PrefixTree::TakeReleases() {
  return std::exchange(releases_, {});
}

int32_t PrefixTree::Common(SequenceId a, SequenceId b) const {
  const auto of_a = sequences_.find(a), of_b = sequences_.find(b);
  if (of_a == sequences_.end() || of_b == sequences_.end()) return 0;
  const Node *x = of_a->second.leaf, *y = of_b->second.leaf;
  while (x != y) {
    // The root ends at page 0, and nothing else does.
    const Node*& lower = x->end > y->end ? x : y;
    lower = lower->parent;
  }
  return x->end;
}

int64_t PrefixTree::Known(std::span<const int32_t> tokens) const {
  int64_t known = 0;
  const Node* node = root_.get();
  while (std::ssize(tokens) >= page_tokens_) {
    node = ChildOf(*node, tokens);
    if (node == nullptr) break;
    const int32_t common = CommonPages(tokens, node->tokens, page_tokens_);
    known += int64_t{common} * page_tokens_;
    if (common < node->pages()) break;
    tokens = tokens.subspan(node->tokens.size());
  }
  return known;
}

}  // namespace sluice
