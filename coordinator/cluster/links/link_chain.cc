#include "coordinator/cluster/links/link_chain.h"

#include <bit>
#include <cstdint>
#include <numeric>

namespace sluice {
namespace {

constexpr size_t kExact = 10;

using Broken = absl::FunctionRef<bool(size_t, size_t)>;

// Held and Karp: for each set of workers, which of them can be the last of an
// order of all of them.
std::vector<size_t> Exact(size_t n, Broken broken) {
  std::vector<uint32_t> before(n);  // who can be followed by each
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to) {
      if (from != to && !broken(from, to)) before[to] |= 1u << from;
    }
  }
  std::vector<uint32_t> last(size_t{1} << n);
  uint32_t best = 0;
  for (uint32_t set = 1; set < last.size(); ++set) {
    for (size_t w = 0; w < n; ++w) {
      const uint32_t bit = 1u << w;
      if ((set & bit) == 0) continue;
      if (set == bit || (last[set ^ bit] & before[w]) != 0) last[set] |= bit;
    }
    if (last[set] != 0 && std::popcount(set) > std::popcount(best)) best = set;
  }
  std::vector<size_t> chain(static_cast<size_t>(std::popcount(best)));
  uint32_t possible = last[best];
  for (size_t i = chain.size(); i-- > 0;) {
    chain[i] = static_cast<size_t>(std::bit_width(possible) - 1);
    best ^= 1u << chain[i];
    possible = last[best] & before[chain[i]];
  }
  return chain;
}

bool Insert(size_t worker, Broken broken, std::vector<size_t>* chain) {
  for (size_t at = chain->size() + 1; at-- > 0;) {
    if (at > 0 && broken((*chain)[at - 1], worker)) continue;
    if (at < chain->size() && broken(worker, (*chain)[at])) continue;
    chain->insert(chain->begin() + static_cast<std::ptrdiff_t>(at), worker);
    return true;
  }
  return false;
}

std::vector<size_t> Greedy(size_t n, Broken broken) {
  std::vector<size_t> chain;
  std::vector<size_t> left(n);
  std::iota(left.begin(), left.end(), size_t{0});
  while (std::erase_if(left, [&](size_t worker) {
           return Insert(worker, broken, &chain);
         }) > 0) {
  }
  return chain;
}

}  // namespace

std::vector<size_t> LongestChain(size_t n, Broken broken) {
  std::vector<size_t> all(n);
  std::iota(all.begin(), all.end(), size_t{0});
  size_t s = 0;
  while (s + 1 < n && !broken(s, s + 1)) ++s;
  if (s + 1 >= n) return all;
  return n <= kExact ? Exact(n, broken) : Greedy(n, broken);
}

}  // namespace sluice
