#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

struct XXH3_state_s;

namespace sluice {

// A hash of bytes, however they are cut: XXH3, 128 bits, seed 0 (xxhash.com,
// specification 0.8). It tells contents apart that nobody forges.
// Thread-compatible.
class ContentHash {
 public:
  ContentHash();
  void Add(absl::string_view bytes);
  // Return the hash of all that was added: 16 bytes, the highest first, and the
  // same in hexadecimal digits.
  std::string Bytes() const;
  std::string Hex() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

// Returns the hash of `bytes` in hexadecimal digits.
std::string HexHash(absl::string_view bytes);

}  // namespace sluice
