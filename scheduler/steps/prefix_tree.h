#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/step_plan.h"
#include "common/types.h"

namespace sluice {

// The beginnings that sequences have in common, as a radix tree over whole
// pages of tokens: which of them are kept in the KV cache, which are being
// computed, and how many sequences want them. A node is a run of pages, and the
// nodes down to it are all that lies before. Sequences end at nodes; where two
// part, a node ends.
//
// A node's pages are the tree's once they are kept, and before if they are
// reserved for the sequence that computes them, its maker; else whoever
// computes them has them for itself. What lies before the tree's pages is the
// tree's, too. The first pages of a running sequence that are the tree's are
// shared: they stay as long as it runs.
//
// Thread-compatible. Deterministic.
class PrefixTree {
 public:
  explicit PrefixTree(int32_t page_tokens);
  ~PrefixTree();
  PrefixTree(PrefixTree&&) noexcept;
  PrefixTree& operator=(PrefixTree&&) noexcept;

  // Adds a sequence that waits. The whole pages of `tokens` may be shared.
  // REQUIRES: it is not here.
  void Add(SequenceId id, std::span<const int32_t> tokens);

  // What a waiting sequence finds if it is admitted now.
  struct Match {
    // Its first pages that are kept, by `source`.
    int32_t pages = 0;
    SequenceId source;
    // The pages behind these that others which wait want, too, and nobody
    // computes: they are to be reserved.
    int32_t to_reserve = 0;
    // The tokens behind these that another one computes, summed over all
    // sequences that wait for them.
    int64_t coming_tokens = 0;
  };
  // REQUIRES: the sequence waits, if it is here.
  Match Find(SequenceId id) const;

  // The sequence runs from now on; it shares what `match` has, and is the maker
  // of what it reserves and of all behind that nobody else makes.
  // REQUIRES: `match` is Find(id).
  void Admit(SequenceId id, const Match& match);

  // Forgets a sequence, if it is here. What was reserved for it is nobody's.
  void Remove(SequenceId id);

  // Pages of running sequences, or of one, that those which wait want and that
  // are not kept, from the first pages to the last.
  struct Candidate {
    int64_t node = 0;
    SequenceId maker;
    int32_t end_pages = 0;  // the maker's first pages, to the node's end
    int32_t new_pages = 0;  // that would become the tree's
  };
  std::vector<Candidate> Candidates() const;
  std::vector<Candidate> Candidates(SequenceId maker) const;
  // Whether the pages before the candidate's are the tree's and the maker's.
  bool MayKeep(const Candidate& candidate) const;
  // Keeps the candidate's pages. REQUIRES: MayKeep; its maker will have
  // computed them before the plan that has TakeKeeps() is carried out.
  void Keep(const Candidate& candidate);
  // Leaves the candidate's pages to their maker: who wants them computes them.
  void Refuse(const Candidate& candidate);

  // Gives up kept pages that no running sequence shares, of a node with none
  // below: the one that was used longest ago, of those that nobody waits for;
  // if `wanted`, also of the others. Never what `spare`, which waits, would
  // share. Returns false if there are none.
  bool Evict(SequenceId spare, bool wanted);
  // Gives up all. REQUIRES: no sequence is here.
  void EvictAll();

  // Returns the prefixes to be kept since the last call, in this order, and
  // those to be released: after the former, before all that was admitted since.
  std::vector<KeptPrefix> TakeKeeps();
  int64_t num_keeps() const { return static_cast<int64_t>(keeps_.size()); }
  std::vector<SequenceId> TakeReleases();

  // The pages that are the tree's.
  int64_t pages() const { return pages_; }
  // Returns the pages with which both begin, if they are here.
  int32_t Common(SequenceId a, SequenceId b) const;
  // Returns how many of the tokens, in whole pages, sequences that are here, or
  // kept prefixes, begin with.
  int64_t Known(std::span<const int32_t> tokens) const;
  // Whether there are no sequences.
  bool empty() const { return sequences_.empty(); }

 private:
  struct Node;
  struct Sequence {
    Node* leaf = nullptr;
    bool running = false;
    int32_t shared = 0;  // pages
  };

  // Calls fn(node) for the nodes down to `leaf`, the topmost one first.
  template <typename Fn>
  static void ForEachOnPath(Node* leaf, Fn fn);
  static Candidate CandidateOf(const Node& node);
  Node* ChildOf(const Node& node, std::span<const int32_t> tokens) const;
  // Cuts a node before page `page` of the path; returns the upper part.
  Node* Split(Node* node, int32_t page);
  void Prune(Node* node);
  void GiveUp(Node* node);
  SequenceId NewPrefix() { return SequenceId(--last_prefix_); }

  int32_t page_tokens_;
  std::unique_ptr<Node> root_;
  absl::flat_hash_map<SequenceId, Sequence> sequences_;
  std::map<int64_t, Node*> made_;  // those that have a maker and are not kept
  std::map<int64_t, Node*> kept_;
  std::vector<KeptPrefix> keeps_;
  std::vector<SequenceId> releases_;
  int64_t pages_ = 0;
  int64_t last_node_ = 0, last_prefix_ = 0, uses_ = 0;
};

}  // namespace sluice
