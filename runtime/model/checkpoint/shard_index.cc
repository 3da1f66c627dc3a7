#include "runtime/model/checkpoint/shard_index.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/json_file.h"

namespace sluice {
namespace {

constexpr size_t kMaxShards = 10000;
constexpr char kPrefix[] = "model.";

bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= 255 &&
         name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

std::string OtherSpelling(const std::string& name) {
  return absl::StartsWith(name, kPrefix) ? name.substr(sizeof(kPrefix) - 1)
                                         : absl::StrCat(kPrefix, name);
}

}  // namespace

absl::StatusOr<ShardIndex> ReadShardIndex(const std::filesystem::path& path) {
  SLUICE_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonObject(path));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object() || map->empty()) {
    return InvalidArgument(path.string(),
                           ": weight_map must be an object with tensors");
  }
  ShardIndex index;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !IsPlainFileName(shard.get<std::string>())) {
      return InvalidArgument(
          path.string(), ": weight_map.", tensor,
          " must be the name of a file in the same directory");
    }
    index.shard_of[tensor] = shard.get<std::string>();
    index.shards.insert(shard.get<std::string>());
  }
  if (index.shards.size() > kMaxShards) {
    return InvalidArgument(path.string(), ": ", index.shards.size(),
                           " shards, but at most ", kMaxShards,
                           " are accepted");
  }
  return index;
}

TensorsByFile CopiesThatDoNotCount(const TensorsByFile& files,
                                   const ShardIndex& index) {
  std::map<std::string, std::vector<std::string>> holders;  // in order of name
  for (const auto& [file, tensors] : files) {
    for (const std::string& tensor : tensors) holders[tensor].push_back(file);
  }
  TensorsByFile ignored;
  for (const auto& [tensor, of_tensor] : holders) {
    const auto named = index.shard_of.find(tensor);
    std::string counts = of_tensor.back();
    if (named == index.shard_of.end()) {
      const std::string other = OtherSpelling(tensor);
      if (index.shard_of.contains(other) && holders.contains(other)) {
        counts.clear();
      }
    } else if (const auto it = files.find(named->second);
               it != files.end() && it->second.contains(tensor)) {
      counts = named->second;
    }
    for (const std::string& file : of_tensor) {
      if (file != counts) ignored[file].insert(tensor);
    }
  }
  return ignored;
}

std::string CopiesText(const TensorsByFile& tensors) {
  if (tensors.empty()) return "";
  return nlohmann::json(tensors).dump(-1, ' ', /*ensure_ascii=*/true,
                                      nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<TensorsByFile> ParseCopiesText(absl::string_view text) {
  TensorsByFile tensors;
  if (text.empty()) return tensors;
  const absl::Status wrong = absl::InvalidArgumentError(
      "the list of the model's copies of tensors is none");
  if (text.size() > kMaxCopiesBytes) return wrong;
  const absl::StatusOr<nlohmann::json> json = ParseJsonObject(text);
  if (!json.ok()) return wrong;
  for (const auto& [file, names] : json->items()) {
    if (!names.is_array() || names.empty()) return wrong;
    for (const nlohmann::json& name : names) {
      if (!name.is_string()) return wrong;
      tensors[file].insert(name.get<std::string>());
    }
  }
  return tensors;
}

}  // namespace sluice
