#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// The index of a model in several files:
//
//   {"metadata": {...}, "weight_map": {"lm_head.weight":
//   "model-2.safetensors"}}
//
// As in transformers, the shards are all files that it names, and a tensor that
// it does not name is read all the same.
inline constexpr char kShardIndexFile[] = "model.safetensors.index.json";
struct ShardIndex {
  std::map<std::string, std::string> shard_of;  // by the tensor's name
  std::set<std::string> shards;
};

// kInvalidArgument unless each shard's name is that of a file in the index's
// directory.
absl::StatusOr<ShardIndex> ReadShardIndex(const std::filesystem::path& path);

// The names of tensors, by the file that holds them.
using TensorsByFile = std::map<std::string, std::set<std::string>>;

// Returns the tensors of these files that do not count, since another file has
// them, too: the shard that the index names counts, or else the last one in
// order of name. The name without its leading "model." is the same tensor's.
TensorsByFile CopiesThatDoNotCount(const TensorsByFile& files,
                                   const ShardIndex& index);

// The text by which those who have no index know of these tensors: "" if there
// are none, else {"FILE": ["TENSOR", ...], ...}. Equal sets have equal texts.
std::string CopiesText(const TensorsByFile& tensors);
constexpr size_t kMaxCopiesBytes = size_t{256} << 10;
// kInvalidArgument if it is no such text.
absl::StatusOr<TensorsByFile> ParseCopiesText(absl::string_view text);

}  // namespace sluice
