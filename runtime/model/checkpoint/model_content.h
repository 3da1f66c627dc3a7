#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

// The content that decides a model copy's answers: config.json and its weight
// files, in order of name, and which copies of tensors in them do not count.
struct ModelContent {
  struct File {
    std::string name;
    uint64_t bytes = 0;
    std::string hash;  // of its content; "" as long as it is not known
    friend bool operator==(const File&, const File&) = default;
  };
  std::vector<File> files;
  std::string copies;  // see CopiesText of shard_index.h

  // Whether all hashes are known (and there is a file).
  bool known() const;
  friend bool operator==(const ModelContent&, const ModelContent&) = default;
};

// The difference of `mine` from `other`, as far as both are known, in words
// that name a file: "model-00002-of-00004.safetensors differs"; or "".
std::string DifferenceOf(const ModelContent& mine, const ModelContent& other);

}  // namespace sluice
