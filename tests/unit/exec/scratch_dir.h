#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace sluice {

// A directory that goes with the test, where the tests run: on a disk, which
// /tmp need not be.
class ScratchDir {
 public:
  ScratchDir() {
    std::string name =
        (std::filesystem::current_path() / "scratch-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace sluice
