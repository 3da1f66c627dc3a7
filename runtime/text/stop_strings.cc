#include "runtime/text/stop_strings.h"

#include <utility>

namespace sluice {
namespace {

uint64_t Edge(uint32_t node, unsigned char byte) {
  return uint64_t{node} << 8 | byte;
}

}  // namespace

StopStringMatcher::StopStringMatcher(std::vector<std::string> stop_strings)
    : stop_strings_(std::move(stop_strings)), nodes_(1) {
  for (size_t i = 0; i < stop_strings_.size(); ++i) {
    Insert(stop_strings_[i], static_cast<int32_t>(i));
  }
  LinkSuffixes();
}

void StopStringMatcher::Insert(absl::string_view stop, int32_t index) {
  if (stop.empty()) return;
  uint32_t node = 0;
  for (const char c : stop) {
    const auto [it, added] =
        children_.try_emplace(Edge(node, static_cast<unsigned char>(c)),
                              static_cast<uint32_t>(nodes_.size()));
    if (added) nodes_.push_back({nodes_[node].depth + 1, 0, -1});
    node = it->second;
  }
  if (nodes_[node].stop < 0) nodes_[node].stop = index;
}

// Nodes are visited breadth first, as a node's suffix is shorter than the node.
void StopStringMatcher::LinkSuffixes() {
  struct Child {
    uint32_t parent;
    unsigned char byte;
    uint32_t node;
  };
  uint32_t deepest = 0;
  for (const Node& node : nodes_) deepest = std::max(deepest, node.depth);
  std::vector<std::vector<Child>> by_depth(deepest + 1);
  for (const auto& [edge, node] : children_) {
    by_depth[nodes_[node].depth].push_back(
        {static_cast<uint32_t>(edge >> 8),
         static_cast<unsigned char>(edge & 0xFF), node});
  }
  for (const auto& children : by_depth) {
    for (const Child& child : children) {
      Node& node = nodes_[child.node];
      node.suffix =
          child.parent == 0 ? 0 : Next(nodes_[child.parent].suffix, child.byte);
      if (node.stop < 0) node.stop = nodes_[node.suffix].stop;
    }
  }
}

uint32_t StopStringMatcher::Next(uint32_t node, unsigned char byte) const {
  while (true) {
    const auto it = children_.find(Edge(node, byte));
    if (it != children_.end()) return it->second;
    if (node == 0) return 0;
    node = nodes_[node].suffix;
  }
}

std::string StopStringMatcher::Append(absl::string_view text) {
  if (stopped_) return "";
  std::string out = std::move(held_);
  held_.clear();
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = Next(state_, static_cast<unsigned char>(text[i]));
    const int32_t stop = nodes_[state_].stop;
    if (stop < 0) continue;
    out.append(text.data(), i + 1);
    matched_ = stop_strings_[stop];
    out.resize(out.size() - matched_.size());
    stopped_ = true;
    return out;
  }
  out.append(text.data(), text.size());
  held_ = out.substr(out.size() - nodes_[state_].depth);
  out.resize(out.size() - held_.size());
  return out;
}

std::string StopStringMatcher::Flush() {
  state_ = 0;
  return std::exchange(held_, std::string());
}

}  // namespace sluice
