#include "runtime/model/model_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/model_dir.h"
#include "tests/unit/model/checkpoint_files.h"

namespace sluice {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kPointer[] =
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e239"
    "3\nsize 12345\n";

std::string Opening(const std::filesystem::path& path) {
  return std::string(ModelDir::Open(path).status().message());
}

// A directory in which HF_HUB_CACHE points, as long as it lives.
class HubCache {
 public:
  HubCache() { setenv("HF_HUB_CACHE", dir_.path().c_str(), 1); }
  ~HubCache() { unsetenv("HF_HUB_CACHE"); }
  std::filesystem::path Add(const std::string& folder,
                            const std::string& commit) {
    const auto path = dir_.path() / folder / "snapshots" / commit;
    std::filesystem::create_directories(path);
    WriteFile(path / "config.json", "{}");
    return path;
  }
  const std::filesystem::path& path() const { return dir_.path(); }

 private:
  TempDir dir_;
};

TEST(ModelPathTest, SaysWhatAFileIs) {
  TempDir dir;
  for (const char* name :
       {"m.gguf", "unnamed", "config.json", "model-00001-of-00002.safetensors",
        "pytorch_model.bin", "notes.txt"}) {
    WriteFile(dir.path() / name,
              std::string(name) == "unnamed" ? "GGUF\3" : "something");
  }
  EXPECT_THAT(Opening(dir.path() / "m.gguf"),
              AllOf(HasSubstr("m.gguf: a GGUF file"), HasSubstr("directory")));
  EXPECT_THAT(Opening(dir.path() / "unnamed"), HasSubstr("a GGUF file"));
  for (const char* name : {"config.json", "model-00001-of-00002.safetensors"}) {
    EXPECT_THAT(
        Opening(dir.path() / name),
        EndsWith("a file; give the model's directory: " + dir.path().string()));
  }
  EXPECT_THAT(Opening(dir.path() / "pytorch_model.bin"),
              HasSubstr("safe_serialization=True"));
  EXPECT_THAT(Opening(dir.path() / "notes.txt"),
              HasSubstr("a file, not a directory"));
}

TEST(ModelPathTest, KnowsNamesOfTheHub) {
  HubCache cache;
  EXPECT_THAT(Opening("meta-llama/Llama-3.1-8B-Instruct"),
              HasSubstr("hf download meta-llama/Llama-3.1-8B-Instruct "
                        "--local-dir DIR"));
  const auto older = cache.Add("models--org--name", "0123abc");
  EXPECT_THAT(Opening("org/name"),
              EndsWith(older.string() + ": give that path"));
  // The snapshot that refs/main names comes before newer ones.
  cache.Add("models--org--name", "4567def");
  std::filesystem::create_directories(cache.path() / "models--org--name/refs");
  WriteFile(cache.path() / "models--org--name/refs/main", "0123abc");
  EXPECT_THAT(Opening("org/name"), HasSubstr(older.string()));
  EXPECT_THAT(Opening(cache.path() / "models--org--name"),
              HasSubstr("give the snapshot: " + older.string()));
  for (const char* path : {"/no/such/dir", "./org/name", "../name", "a/b/c"}) {
    EXPECT_THAT(Opening(path), AllOf(HasSubstr("no such directory; a model "
                                               "directory holds")));
  }
}

TEST(ModelPathTest, AFamilyThatIsNotSupportedIsSaidByItsName) {
  for (const char* name :
       {"Qwen/Qwen1.5-0.5B", "google/gemma-3n-E2B-it", "microsoft/phi-2",
        "mistralai/Mixtral-8x7B-v0.1", "deepseek-ai/DeepSeek-V3"}) {
    EXPECT_THAT(Opening(name), AllOf(HasSubstr("which Sluice does not run"),
                                     HasSubstr("llama, mistral, olmo2")));
  }
  for (const char* name :
       {"Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-0.6B",
        "microsoft/Phi-3-mini-4k-instruct", "mistralai/Mistral-7B-v0.3",
        "facebook/opt-125m", "google/gemma-2-2b-it", "EleutherAI/pythia-70m",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "org/graphical"}) {
    EXPECT_THAT(Opening(name), HasSubstr("hf download"));
  }
  // What lies in the cache is known better.
  HubCache cache;
  const auto there = cache.Add("models--google--gemma-3n-E2B-it", "0123abc");
  EXPECT_THAT(Opening("google/gemma-3n-E2B-it"), HasSubstr(there.string()));
}

TEST(ModelPathTest, ADirectoryWithNothingButAGgufIsSaidToBeThat) {
  TempDir dir;
  WriteFile(dir.path() / "small-Q4_0.gguf", "GGUF");
  EXPECT_THAT(Opening(dir.path()),
              AllOf(HasSubstr("there is small-Q4_0.gguf"),
                    HasSubstr("the model that it was made from")));
}

TEST(ModelPathTest, SnapshotsAreNamedAfterTheModel) {
  EXPECT_EQ(ModelName("/models/llama"), "llama");
  EXPECT_EQ(ModelName("/models/llama/"), "llama");
  EXPECT_EQ(ModelName("/models/./llama/."), "llama");
  EXPECT_EQ(ModelName("/hub/models--org--a--b/snapshots/0123abc"), "org/a--b");
  EXPECT_EQ(ModelName("/hub/models--gpt2/snapshots/0123abc"), "gpt2");
  EXPECT_EQ(ModelName("/hub/models--org--name/snapshots/0123abc/"), "org/name");
  EXPECT_EQ(ModelName("/my/snapshots/llama"), "llama");
  EXPECT_EQ(ModelName("/models/caf\xE9"), "caf\\xe9");
}

TEST(ModelPathTest, PointersOfGitLfsAreCalledThat) {
  TempDir dir;
  WriteFile(dir.path() / "config.json", kPointer);
  EXPECT_THAT(Opening(dir.path()),
              AllOf(StartsWith((dir.path() / "config.json").string()),
                    HasSubstr("git lfs pull")));
  WriteFile(dir.path() / "model.safetensors", kPointer);
  EXPECT_THAT(
      std::string(SafetensorsSource::Open(dir.path()).status().message()),
      AllOf(HasSubstr("model.safetensors: a Git LFS pointer"),
            HasSubstr("git lfs pull")));
}

}  // namespace
}  // namespace sluice
