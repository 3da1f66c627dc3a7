#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace sluice {

// A new directory, removed with its contents by the destructor.
class TempDir {
 public:
  explicit TempDir(const std::filesystem::path& parent =
                       std::filesystem::temp_directory_path()) {
    std::string name = (parent / "sluice-test-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr) << name;
    path_ = name;
  }
  // Makes one on a disk (/tmp may not be): in TEST_TMPDIR, or where tests run.
  static TempDir OnDisk() {
    const char* given = std::getenv("TEST_TMPDIR");
    return TempDir(given != nullptr ? std::filesystem::path(given)
                                    : std::filesystem::current_path());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }
  // Writes the file `name` and returns its path.
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return *this / name;
  }
  size_t num_entries() const {
    return std::distance(std::filesystem::directory_iterator(path_),
                         std::filesystem::directory_iterator());
  }

 private:
  std::filesystem::path path_;
};

}  // namespace sluice
