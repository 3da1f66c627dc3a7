#include "runtime/model/hub_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "runtime/model/model_dir.h"
#include "runtime/model/model_path.h"
#include "tests/unit/model/checkpoint_files.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr char kFirst[] = "0123456789abcdef0123456789abcdef01234567";
constexpr char kSecond[] = "89abcdef0123456789abcdef0123456789abcdef";

// Sets variables of the environment, null for none, as long as it lives.
class Variables {
 public:
  Variables(std::initializer_list<std::pair<std::string, const char*>> values) {
    for (const auto& [name, value] : values) {
      const char* old = std::getenv(name.c_str());
      old_[name] = old == nullptr ? std::nullopt : std::optional(old);
      Set(name, value);
    }
  }
  ~Variables() {
    for (const auto& [name, value] : old_) {
      Set(name, value ? value->c_str() : nullptr);
    }
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  static void Set(const std::string& name, const char* value) {
    if (value == nullptr) {
      unsetenv(name.c_str());
    } else {
      setenv(name.c_str(), value, 1);
    }
  }
  std::map<std::string, std::optional<std::string>> old_;
};

// A cache that is the user's as long as it lives, with a model org/name of
// revision main.
class HubCacheTest : public testing::Test {
 protected:
  HubCacheTest() : variables_{{"HF_HUB_CACHE", dir_.path().c_str()}} {
    AddRef("main", kFirst);
    AddFile(kFirst, "config.json", R"({"model_type": "llama"})");
    AddFile(kFirst, "model.safetensors", "weights");
  }

  fs::path Folder() const { return dir_.path() / "models--org--name"; }
  fs::path Snapshot(const std::string& commit) const {
    return Folder() / "snapshots" / commit;
  }
  void AddRef(const std::string& revision, const std::string& text) {
    const fs::path path = Folder() / "refs" / revision;
    fs::create_directories(path.parent_path());
    WriteFile(path, text);
  }
  // Adds a file as a link to a blob, as the Hub's tools do.
  void AddFile(const std::string& commit, const std::string& name,
               const std::string& text) {
    fs::create_directories(Folder() / "blobs");
    fs::create_directories(Snapshot(commit));
    const std::string blob = "blob-" + commit.substr(0, 4) + name;
    WriteFile(Folder() / "blobs" / blob, text);
    fs::create_symlink("../../blobs/" + blob, Snapshot(commit) / name);
  }
  void Remove(const std::string& name) { fs::remove(Snapshot(kFirst) / name); }
  static absl::StatusOr<fs::path> Find(
      const std::string& name, ModelFiles files = ModelFiles::kWeights) {
    return FindModel(name, files);
  }
  static std::string Error(const std::string& name,
                           ModelFiles files = ModelFiles::kWeights) {
    const auto found = Find(name, files);
    return found.ok() ? "found " + found->string()
                      : std::string(found.status().message());
  }
  // What is said of a snapshot from which something is missing.
  std::string Lacks(const std::string& what) const {
    return "org/name: the snapshot in the Hugging Face cache (" +
           Snapshot(kFirst).string() + ") " + what +
           ": get the rest with `hf download org/name`";
  }

  TempDir dir_;
  Variables variables_;
};

TEST(HubCacheDirTest, IsWhereTheHubsToolsHaveIt) {
  const Variables none{
      {"HF_HUB_CACHE", nullptr}, {"HUGGINGFACE_HUB_CACHE", nullptr},
      {"HF_HOME", nullptr},      {"XDG_CACHE_HOME", nullptr},
      {"HOME", "/home/me"},      {"PLACE", "/place"}};
  EXPECT_EQ(HubCacheDir(), "/home/me/.cache/huggingface/hub");
  const Variables xdg{{"XDG_CACHE_HOME", "/xdg"}};
  EXPECT_EQ(HubCacheDir(), "/xdg/huggingface/hub");
  const Variables home{{"HF_HOME", "~/hf"}};
  EXPECT_EQ(HubCacheDir(), "/home/me/hf/hub");
  const Variables older{{"HUGGINGFACE_HUB_CACHE", "/older"}};
  EXPECT_EQ(HubCacheDir(), "/older");
  const Variables empty{{"HF_HUB_CACHE", ""}};
  EXPECT_EQ(HubCacheDir(), "/older");
  for (const auto& [value, path] :
       std::map<std::string, std::string>{{"/hub", "/hub"},
                                          {"~", "/home/me"},
                                          {"$PLACE/hub", "/place/hub"},
                                          {"/a${PLACE}b", "/a/placeb"},
                                          {"$NOWHERE_X/$", "$NOWHERE_X/$"},
                                          {"${PLACE", "${PLACE"},
                                          {"~other/hub", "~other/hub"}}) {
    const Variables hub{{"HF_HUB_CACHE", value.c_str()}};
    EXPECT_EQ(HubCacheDir(), path) << value;
  }
  const Variables nowhere{{"HUGGINGFACE_HUB_CACHE", nullptr},
                          {"HF_HOME", nullptr},
                          {"XDG_CACHE_HOME", nullptr},
                          {"HF_HUB_CACHE", nullptr},
                          {"HOME", nullptr}};
  EXPECT_EQ(HubCacheDir(), "");
  EXPECT_THAT(
      std::string(
          FindModel("org/name", ModelFiles::kConfig).status().message()),
      HasSubstr("HOME is not set"));
}

TEST_F(HubCacheTest, NamesAreFoundByBranchTagAndCommit) {
  EXPECT_EQ(*Find("org/name"), Snapshot(kFirst));
  EXPECT_EQ(*Find("org/name@main"), Snapshot(kFirst));
  EXPECT_EQ(*Find(std::string("org/name@") + kFirst), Snapshot(kFirst));
  AddFile(kSecond, "config.json", "{}");
  AddFile(kSecond, "model.safetensors", "weights");
  EXPECT_EQ(*Find(std::string("org/name@") + kSecond), Snapshot(kSecond));
  AddRef("v1.0", std::string(kSecond) + "\n");
  AddRef("refs/pr/7", kSecond);
  EXPECT_EQ(*Find("org/name@v1.0"), Snapshot(kSecond));
  EXPECT_EQ(*Find("org/name@refs/pr/7"), Snapshot(kSecond));
  EXPECT_EQ(*Find("org/name"), Snapshot(kFirst));
}

TEST_F(HubCacheTest, OldModelsHaveNoOrganization) {
  const fs::path old = dir_.path() / "models--gpt-x";
  fs::create_directories(old / "snapshots" / kFirst);
  fs::create_directories(old / "refs");
  WriteFile(old / "refs" / "main", kFirst);
  WriteFile(old / "snapshots" / kFirst / "config.json", "{}");
  EXPECT_EQ(*Find("gpt-x", ModelFiles::kConfig), old / "snapshots" / kFirst);
  EXPECT_THAT(Error("gpt-y"), StartsWith("gpt-y: no such directory; a model "
                                         "directory holds"));
}

TEST_F(HubCacheTest, APathThatIsThereComesFirst) {
  TempDir work;
  const fs::path before = fs::current_path();
  fs::current_path(work.path());
  fs::create_directories("org/name");
  EXPECT_EQ(*Find("org/name"), "org/name");
  fs::remove("org/name");
  WriteFile("org/name", "a file");
  EXPECT_EQ(*Find("org/name"), "org/name");
  fs::remove("org/name");
  fs::create_symlink("nowhere", "org/name");
  EXPECT_EQ(*Find("org/name"), "org/name");
  fs::current_path(before);
  EXPECT_EQ(*Find("org/name"), Snapshot(kFirst));
}

TEST_F(HubCacheTest, WhatIsNotThereIsSaidWithTheCommandThatGetsIt) {
  EXPECT_EQ(Error("org/other@v2"),
            "org/other@v2: no such directory, and no such model in the Hugging "
            "Face cache (" +
                dir_.path().string() +
                "): if it is a model of the Hub, get it with `hf download "
                "org/other --revision v2`");
  EXPECT_EQ(Error("org/name@v2"),
            "org/name@v2: the Hugging Face cache has this model (" +
                Folder().string() +
                "), but not its revision v2 (there is: main): get it with `hf "
                "download org/name --revision v2`");
  fs::remove(Folder() / "refs" / "main");
  EXPECT_THAT(Error("org/name"),
              AllOf(HasSubstr("not its revision main (there is: "),
                    HasSubstr(kFirst), EndsWith("`hf download org/name`")));
  EXPECT_EQ(*Find(std::string("org/name@") + kFirst), Snapshot(kFirst));
  AddRef("main", kSecond);
  EXPECT_EQ(Error("org/name"),
            "org/name: " + Snapshot(kSecond).string() +
                " is not in the Hugging Face cache, though revision main is "
                "it: get it with `hf download org/name`");
  EXPECT_EQ(Find("org/name").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(HubCacheTest, NoNameLeadsOutOfTheCache) {
  // What is named would be there.
  fs::create_directories(dir_.path() / "snapshots" / kFirst);
  WriteFile(dir_.path() / "secret", kFirst);
  WriteFile(Folder() / "secret", kFirst);
  fs::create_directories(Folder() / "snapshots" / "sub" / kFirst);
  for (const char* revision :
       {"../secret", "../../secret", "a/../../secret", "..", ".", "a//b",
        "/etc/hostname", "main/", "-x", "a b", "a;b", "a\nb", ""}) {
    EXPECT_THAT(Error(std::string("org/name@") + revision),
                HasSubstr("is no revision of org/name: give a branch"))
        << revision;
  }
  for (const char* name :
       {"../name", "org/..", "./org/name", "org/name/", "/org/name", "a/b/c",
        "org/na me", "org/a--b", "..--org/name", "org/.name", "org/a..b"}) {
    EXPECT_FALSE(ParseHubName(name).has_value()) << name;
    EXPECT_THAT(Error(name), HasSubstr("no such directory; a model directory"))
        << name;
  }
  for (const char* name : {"none.gguf", "org/None.GGUF", "/a/b/none.gguf"}) {
    EXPECT_THAT(Error(name), HasSubstr(": no such file; name a GGUF file"))
        << name;
  }
  // A ref must name a commit, no path.
  for (const char* text :
       {"../..", "..", "sub/../0123",
        "sub/0123456789abcdef0123456789abcdef0123", "", "0123abc",
        "0123456789ABCDEF0123456789ABCDEF01234567"}) {
    AddRef("main", text);
    EXPECT_THAT(Error("org/name"), HasSubstr("but not its revision main"))
        << text;
  }
}

TEST_F(HubCacheTest, ASnapshotMustBeWhole) {
  Remove("config.json");
  EXPECT_EQ(Error("org/name"), Lacks("has no config.json"));
  EXPECT_EQ(Error("org/name", ModelFiles::kConfig),
            Lacks("has no config.json"));
  AddFile(kFirst, "config.json", "{}");
  fs::remove(Folder() / "blobs" / "blob-0123model.safetensors");
  EXPECT_EQ(Error("org/name"),
            Lacks("has a model.safetensors that leads nowhere"));
  EXPECT_EQ(Error("org/name", ModelFiles::kWeightsIfAny),
            Lacks("has a model.safetensors that leads nowhere"));
  EXPECT_EQ(*Find("org/name", ModelFiles::kConfig), Snapshot(kFirst));
  Remove("model.safetensors");
  EXPECT_EQ(Error("org/name"), Lacks("has no weights"));
  EXPECT_EQ(*Find("org/name", ModelFiles::kWeightsIfAny), Snapshot(kFirst));
  WriteFile(Folder() / "blobs" / "abc.incomplete", "part");
  EXPECT_THAT(Error("org/name"),
              EndsWith("has no weights; its download goes on, or was cut: go "
                       "on with `hf download org/name`"));
}

TEST_F(HubCacheTest, AllShardsMustBeThere) {
  Remove("model.safetensors");
  AddFile(kFirst, "model-00001-of-00002.safetensors", "x");
  EXPECT_EQ(Error("org/name"),
            Lacks("has shards, but no model.safetensors.index.json"));
  AddFile(kFirst, "model.safetensors.index.json",
          R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
                             "b": "model-00002-of-00002.safetensors"}})");
  for (const ModelFiles files :
       {ModelFiles::kWeights, ModelFiles::kWeightsIfAny}) {
    EXPECT_EQ(Error("org/name", files),
              Lacks("has 1 of the 2 shards that model.safetensors.index.json "
                    "names (the first that is missing is "
                    "model-00002-of-00002.safetensors)"));
  }
  EXPECT_EQ(*Find("org/name", ModelFiles::kConfig), Snapshot(kFirst));
  AddFile(kFirst, "model-00002-of-00002.safetensors", "x");
  EXPECT_EQ(*Find("org/name"), Snapshot(kFirst));
  Remove("model.safetensors.index.json");
  AddFile(kFirst, "model.safetensors.index.json", "[");
  EXPECT_THAT(Error("org/name"),
              AllOf(StartsWith("org/name: "), HasSubstr("JSON")));
}

TEST_F(HubCacheTest, OtherFormatsAreLeftToThoseWhoOpenThem) {
  Remove("model.safetensors");
  AddFile(kFirst, "pytorch_model.bin", "x");
  EXPECT_EQ(*Find("org/name"), Snapshot(kFirst));
  Remove("config.json");
  Remove("pytorch_model.bin");
  AddFile(kFirst, "small.gguf", "GGUF");
  EXPECT_THAT(std::string(ModelDir::Open(*Find("org/name", ModelFiles::kConfig))
                              .status()
                              .message()),
              HasSubstr("there is small.gguf; to run it, give the file"));
}

TEST_F(HubCacheTest, AFamilyThatIsNotSupportedIsSaidByItsName) {
  for (const char* name :
       {"Qwen/Qwen1.5-0.5B", "google/gemma-3n-E2B-it", "microsoft/phi-2",
        "allenai/OLMo-7B", "deepseek-ai/DeepSeek-V3@main"}) {
    EXPECT_THAT(Error(name), AllOf(HasSubstr("which Sluice does not run"),
                                   HasSubstr("mistral, mixtral, olmo2")));
  }
  for (const char* name :
       {"Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-0.6B",
        "microsoft/Phi-3-mini-4k-instruct", "mistralai/Mistral-7B-v0.3",
        "facebook/opt-125m", "mistralai/Mixtral-8x7B-v0.1",
        "openai/gpt-oss-20b", "allenai/OLMoE-1B-7B-0924", "zai-org/GLM-4.5-Air",
        "Qwen/Qwen1.5-MoE-A2.7B", "google/gemma-2-2b-it",
        "EleutherAI/pythia-70m", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "org/graphical"}) {
    EXPECT_THAT(Error(name), HasSubstr("hf download"));
  }
  // What lies in the cache is known better.
  fs::rename(Folder(), dir_.path() / "models--google--gemma-3n-E2B-it");
  EXPECT_THAT(Error("google/gemma-3n-E2B-it"), StartsWith("found "));
}

TEST_F(HubCacheTest, AFolderOfTheCacheIsToldItsName) {
  const auto opened = ModelDir::Open(Folder());
  EXPECT_EQ(std::string(opened.status().message()),
            Folder().string() +
                ": a folder of the Hugging Face cache; give the model's name, "
                "org/name, or a snapshot: " +
                Snapshot(kFirst).string());
}

TEST_F(HubCacheTest, AllSnapshotsAreListed) {
  AddFile(kSecond, "config.json", "{}");
  AddRef("v1", kFirst);
  fs::create_directories(dir_.path() / "models--gpt-x" / "blobs");
  fs::create_directories(dir_.path() / "datasets--org--data" / "snapshots" /
                         kFirst);
  fs::create_directories(dir_.path() / ".locks" / "models--org--name");
  fs::create_directories(Folder() / "snapshots" / "odd");
  WriteFile(dir_.path() / "version.txt", "1");
  const auto all = ListSnapshots(dir_.path());
  ASSERT_EQ(all.size(), 3);
  EXPECT_EQ(all[0].id, "gpt-x");
  EXPECT_EQ(all[0].commit, "");
  EXPECT_EQ(all[0].path, dir_.path() / "models--gpt-x");
  EXPECT_EQ(all[1].id, "org/name");
  EXPECT_EQ(all[1].commit, kFirst);
  EXPECT_THAT(all[1].revisions, ElementsAre("main", "v1"));
  EXPECT_EQ(all[1].path, Snapshot(kFirst));
  EXPECT_EQ(all[2].commit, kSecond);
  EXPECT_THAT(all[2].revisions, IsEmpty());
  EXPECT_THAT(ListSnapshots(dir_.path() / "none"), IsEmpty());
}

TEST(ModelNameTest, SnapshotsAreNamedAfterTheModel) {
  EXPECT_EQ(ModelName("/models/llama"), "llama");
  EXPECT_EQ(ModelName("/models/llama/"), "llama");
  EXPECT_EQ(ModelName("/models/./llama/."), "llama");
  EXPECT_EQ(ModelName("/hub/models--org--a--b/snapshots/0123abc"), "org/a--b");
  EXPECT_EQ(ModelName("/hub/models--gpt2/snapshots/0123abc"), "gpt2");
  EXPECT_EQ(ModelName("/hub/models--org--name/snapshots/0123abc/"), "org/name");
  EXPECT_EQ(ModelName("/my/snapshots/llama"), "llama");
  EXPECT_EQ(ModelName("/models/caf\xE9"), "caf\\xe9");
  const std::string snapshot =
      std::string("/hub/models--org--name/snapshots/") + kFirst;
  EXPECT_EQ(ModelCommit(snapshot), "0123456789ab");
  EXPECT_EQ(ModelCommit(snapshot + "/"), "0123456789ab");
  EXPECT_EQ(ModelCommit("/my/snapshots/llama"), "");
  EXPECT_EQ(ModelCommit(""), "");
}

}  // namespace
}  // namespace sluice
