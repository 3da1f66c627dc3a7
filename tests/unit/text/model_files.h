#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tests/support/temp_dir.h"

namespace sluice {

// A directory with these files (name -> content), removed at the end.
class ModelFiles {
 public:
  explicit ModelFiles(const std::map<std::string, std::string>& files);

  const std::filesystem::path& dir() const { return dir_.path(); }

 private:
  const TempDir dir_;
};

// A small valid tokenizer.json: "a", "b", "c", " ", "ab", "abc" and the special
// token "<s>" (id 6), which its post-processor puts first.
nlohmann::json SmallTokenizerJson();

}  // namespace sluice
