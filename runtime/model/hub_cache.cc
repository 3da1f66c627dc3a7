#include "runtime/model/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "runtime/model/checkpoint/shard_index.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr char kCachePrefix[] = "models--";
constexpr char kMain[] = "main";
constexpr size_t kCommitDigits = 40;  // of a SHA-1
constexpr size_t kShownDigits = 12;
constexpr size_t kMaxNamePart = 96;
constexpr size_t kMaxRevision = 250;
constexpr size_t kMaxListed = 4;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool IsCommit(absl::string_view text) {
  return text.size() == kCommitDigits &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isxdigit(c) && !absl::ascii_isupper(c);
         });
}

// Whether `text` can be the name of a file of ours, and stays in its folder.
bool IsPlainPart(absl::string_view text, absl::string_view others) {
  if (text.empty() || text[0] == '.') return false;
  return std::all_of(text.begin(), text.end(), [others](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains(others, c);
  });
}

// The Hub allows one slash, and neither "--" nor "..".
bool IsId(absl::string_view id) {
  const std::vector<absl::string_view> parts = absl::StrSplit(id, '/');
  return parts.size() <= 2 && !absl::StrContains(id, "--") &&
         !absl::StrContains(id, "..") &&
         std::all_of(parts.begin(), parts.end(), [](absl::string_view part) {
           return part.size() <= kMaxNamePart && IsPlainPart(part, "-_.");
         });
}

bool IsRevision(absl::string_view revision) {
  const std::vector<absl::string_view> parts = absl::StrSplit(revision, '/');
  return revision.size() <= kMaxRevision && revision[0] != '-' &&
         std::all_of(parts.begin(), parts.end(), [](absl::string_view part) {
           return IsPlainPart(part, "-_.+");
         });
}

fs::path FolderOf(const std::string& id) {
  return absl::StrCat(kCachePrefix, absl::StrReplaceAll(id, {{"/", "--"}}));
}

std::string IdOf(absl::string_view folder) {
  folder.remove_prefix(sizeof(kCachePrefix) - 1);
  std::string id(folder.data(), folder.size());
  // Names of organizations do not have two dashes.
  const size_t dashes = id.find("--");
  if (dashes != std::string::npos) id.replace(dashes, 2, "/");
  return id;
}

// The commit in a file of refs/; "" if there is none.
std::string ReadRef(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "";
  std::string text(kCommitDigits + 2, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  text = std::string(absl::StripAsciiWhitespace(text));
  return IsCommit(text) ? text : "";
}

// The commits of all revisions that refs/ has.
std::map<std::string, std::string> ReadRefs(const fs::path& refs) {
  std::map<std::string, std::string> commits;
  std::error_code error;
  for (fs::recursive_directory_iterator it(refs, error), end; it != end;
       it.increment(error)) {
    if (error) break;
    const std::string commit = ReadRef(it->path());
    if (commit.empty()) continue;
    commits[it->path().lexically_relative(refs).string()] = commit;
  }
  return commits;
}

// The names of what is in a folder, in order.
std::vector<std::string> NamesIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The revisions that can be named, for a message.
std::string KnownRevisions(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& [name, commit] : ReadRefs(folder / "refs")) {
    names.push_back(name);
  }
  if (names.empty()) names = NamesIn(folder / "snapshots");
  if (names.empty()) return "none";
  const size_t all = names.size();
  if (all > kMaxListed) names.resize(kMaxListed);
  return absl::StrCat(absl::StrJoin(names, ", "),
                      all > kMaxListed ? ", ..." : "");
}

// Does as os.path.expanduser and expandvars, as far as paths need it: a "~" at
// the beginning, $NAME and ${NAME}. What is not set stays.
std::string Expand(std::string path) {
  const std::string home = Environment("HOME");
  if (!home.empty() && (path == "~" || absl::StartsWith(path, "~/"))) {
    path.replace(0, 1, home);
  }
  std::string expanded;
  for (size_t i = 0; i < path.size();) {
    const size_t begin = i + 1 + (path.compare(i, 2, "${") == 0 ? 1 : 0);
    size_t end = begin;
    while (end < path.size() &&
           (absl::ascii_isalnum(path[end]) || path[end] == '_')) {
      ++end;
    }
    const bool braces = begin == i + 2;
    const bool whole = !braces || (end < path.size() && path[end] == '}');
    const char* value = nullptr;
    if (path[i] == '$' && end > begin && whole) {
      value = std::getenv(path.substr(begin, end - begin).c_str());
    }
    if (value == nullptr) {
      expanded += path[i++];
    } else {
      expanded += value;
      i = end + (braces ? 1 : 0);
    }
  }
  return expanded;
}

// Whether it is a link to nothing.
bool LeadsNowhere(const fs::path& path) {
  std::error_code error;
  return fs::is_symlink(path, error) && !fs::exists(path, error);
}

bool IsWeights(absl::string_view name) {
  return absl::EndsWith(name, ".safetensors") || absl::EndsWith(name, ".bin") ||
         absl::EndsWith(name, ".pt") || absl::EndsWith(name, ".pth");
}

absl::Status CheckShards(const fs::path& dir) {
  SLUICE_ASSIGN_OR_RETURN(const ShardIndex index,
                          ReadShardIndex(dir / kShardIndexFile));
  std::vector<std::string> missing;
  std::error_code error;
  for (const std::string& shard : index.shards) {
    if (!fs::exists(dir / shard, error)) missing.push_back(shard);
  }
  if (missing.empty()) return absl::OkStatus();
  return NotFound("has ", index.shards.size() - missing.size(), " of the ",
                  index.shards.size(), " shards that ", kShardIndexFile,
                  " names (the first that is missing is ", missing[0], ")");
}

// Returns the path without dots and a slash at its end.
fs::path Tidy(const fs::path& path) {
  std::error_code error;
  fs::path tidy = fs::absolute(path, error).lexically_normal();
  if (error) tidy = path.lexically_normal();
  return tidy.has_filename() ? tidy : tidy.parent_path();
}

bool IsSnapshot(const fs::path& tidy) {
  return tidy.parent_path().filename() == "snapshots" &&
         absl::StartsWith(tidy.parent_path().parent_path().filename().string(),
                          kCachePrefix);
}

}  // namespace

std::string HubName::ToString() const {
  return revision.empty() ? id : absl::StrCat(id, "@", revision);
}

std::string HubName::DownloadCommand() const {
  return absl::StrCat("hf download ", id,
                      revision.empty() ? "" : " --revision ", revision);
}

std::optional<HubName> ParseHubName(absl::string_view text) {
  HubName name;
  const size_t at = text.find('@');
  const absl::string_view id = text.substr(0, at);
  if (!IsId(id)) return std::nullopt;
  name.id = std::string(id.data(), id.size());
  if (at != absl::string_view::npos) {
    const absl::string_view revision = text.substr(at + 1);
    if (revision.empty() || !IsRevision(revision)) return std::nullopt;
    name.revision = std::string(revision.data(), revision.size());
  }
  return name;
}

fs::path HubCacheDir() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    const std::string cache = Environment(name);
    if (!cache.empty()) return Expand(cache);
  }
  const std::string hub = Environment("HF_HOME");
  if (!hub.empty()) return fs::path(Expand(hub)) / "hub";
  const std::string user = Environment("XDG_CACHE_HOME");
  if (!user.empty()) return fs::path(Expand(user)) / "huggingface" / "hub";
  const std::string home = Environment("HOME");
  if (home.empty()) return "";
  return fs::path(home) / ".cache" / "huggingface" / "hub";
}

bool IsCached(const fs::path& cache, const std::string& id) {
  std::error_code error;
  return !cache.empty() && fs::is_directory(cache / FolderOf(id), error);
}

absl::StatusOr<fs::path> FindSnapshot(const fs::path& cache,
                                      const HubName& name) {
  std::error_code error;
  const fs::path folder = cache / FolderOf(name.id);
  if (!IsCached(cache, name.id)) {
    return NotFound(name.ToString(),
                    ": no such directory, and no such model in the Hugging "
                    "Face cache (",
                    cache.empty() ? "HOME is not set" : cache.string(),
                    "): if it is a model of the Hub, get it with `",
                    name.DownloadCommand(), "`");
  }
  const std::string revision = name.revision.empty() ? kMain : name.revision;
  std::string commit = ReadRef(folder / "refs" / revision);
  if (commit.empty() && IsCommit(revision)) commit = revision;
  if (commit.empty()) {
    return NotFound(name.ToString(),
                    ": the Hugging Face cache has this model (",
                    folder.string(), "), but not its revision ", revision,
                    " (there is: ", KnownRevisions(folder), "): get it with `",
                    name.DownloadCommand(), "`");
  }
  fs::path snapshot = folder / "snapshots" / commit;
  if (fs::is_directory(snapshot, error)) return snapshot;
  return NotFound(name.ToString(), ": ", snapshot.string(),
                  " is not in the Hugging Face cache",
                  commit == revision
                      ? ""
                      : absl::StrCat(", though revision ", revision, " is it"),
                  ": get it with `", name.DownloadCommand(), "`");
}

std::optional<fs::path> AnySnapshot(const fs::path& folder) {
  std::error_code error;
  const std::string main = ReadRef(folder / "refs" / kMain);
  const fs::path named = folder / "snapshots" / main;
  if (!main.empty() && fs::exists(named / "config.json", error)) return named;
  std::optional<fs::path> newest;
  fs::file_time_type newest_time;
  for (const std::string& commit : NamesIn(folder / "snapshots")) {
    const fs::path path = folder / "snapshots" / commit;
    std::error_code ignored;
    if (!fs::exists(path / "config.json", ignored)) continue;
    const fs::file_time_type time = fs::last_write_time(path, ignored);
    if (newest && time <= newest_time) continue;
    newest = path;
    newest_time = time;
  }
  return newest;
}

absl::Status CheckWhole(const fs::path& dir, ModelFiles files) {
  if (files == ModelFiles::kAnything) return absl::OkStatus();
  const std::vector<std::string> names = NamesIn(dir);
  bool config = false;
  bool index = false;
  bool safetensors = false;
  bool others = false;
  for (const std::string& name : names) {
    const bool weights = IsWeights(name);
    if (LeadsNowhere(dir / name) &&
        !(weights && files == ModelFiles::kConfig)) {
      return NotFound("has a ", name, " that leads nowhere");
    }
    config |= name == "config.json" || absl::EndsWith(name, ".gguf");
    index |= name == kShardIndexFile;
    safetensors |= name == "model.safetensors";
    others |= weights && !absl::EndsWith(name, ".safetensors");
  }
  if (!config) return NotFound("has no config.json");
  if (files == ModelFiles::kConfig || safetensors) return absl::OkStatus();
  if (index) return CheckShards(dir);
  const bool some = std::any_of(names.begin(), names.end(), [](const auto& n) {
    return absl::StartsWith(n, "model-") && absl::EndsWith(n, ".safetensors");
  });
  if (some) return NotFound("has shards, but no ", kShardIndexFile);
  if (files == ModelFiles::kWeightsIfAny || others) return absl::OkStatus();
  return NotFound("has no weights");
}

std::vector<CachedSnapshot> ListSnapshots(const fs::path& cache) {
  std::vector<CachedSnapshot> found;
  std::error_code error;
  for (const std::string& name : NamesIn(cache)) {
    const fs::path folder = cache / name;
    if (!absl::StartsWith(name, kCachePrefix) ||
        !fs::is_directory(folder, error)) {
      continue;
    }
    const std::string id = EscapeInvalidUtf8(IdOf(name));
    const auto refs = ReadRefs(folder / "refs");
    bool any = false;
    for (const std::string& commit : NamesIn(folder / "snapshots")) {
      if (!IsCommit(commit)) continue;
      any = true;
      CachedSnapshot snapshot{
          .id = id, .commit = commit, .path = folder / "snapshots" / commit};
      for (const auto& [revision, of] : refs) {
        if (of == commit) snapshot.revisions.push_back(revision);
      }
      found.push_back(std::move(snapshot));
    }
    if (!any) found.push_back({.id = id, .path = folder});
  }
  return found;
}

std::string ModelName(const fs::path& model_dir) {
  const fs::path path = Tidy(model_dir);
  return EscapeInvalidUtf8(
      IsSnapshot(path)
          ? IdOf(path.parent_path().parent_path().filename().string())
          : path.filename().string());
}

std::string ModelCommit(const fs::path& model_dir) {
  const fs::path path = Tidy(model_dir);
  if (!IsSnapshot(path)) return "";
  return EscapeInvalidUtf8(path.filename().string().substr(0, kShownDigits));
}

}  // namespace sluice
