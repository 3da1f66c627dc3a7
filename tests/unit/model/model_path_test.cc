#include "runtime/model/model_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(ModelPathTest, SaysWhatAFileIs) {
  TempDir dir;
  for (const char* name :
       {"m.gguf", "unnamed", "config.json", "model-00001-of-00002.safetensors",
        "pytorch_model.bin", "notes.txt"}) {
    WriteFile(dir.path() / name,
              std::string(name) == "unnamed" ? "GGUF\3" : "something");
  }
  EXPECT_THAT(Opening(dir.path() / "m.gguf"),
              HasSubstr("m.gguf: does not begin with GGUF"));
  EXPECT_THAT(Opening(dir.path() / "unnamed"), HasSubstr("it was cut"));
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

TEST(ModelPathTest, ADirectoryWithNothingButAGgufIsSaidToBeThat) {
  TempDir dir;
  WriteFile(dir.path() / "small-Q4_0.gguf", "GGUF");
  EXPECT_THAT(Opening(dir.path()), AllOf(HasSubstr("there is small-Q4_0.gguf"),
                                         HasSubstr("give the file: ")));
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
