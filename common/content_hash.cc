#include "common/content_hash.h"

#include <xxhash.h>

#include "absl/strings/escaping.h"

namespace sluice {

void ContentHash::Free::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

ContentHash::ContentHash() : state_(XXH3_createState()) {
  XXH3_128bits_reset(state_.get());
}

void ContentHash::Add(absl::string_view bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

std::string ContentHash::Bytes() const {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(state_.get()));
  return std::string(reinterpret_cast<const char*>(bytes.digest),
                     sizeof(bytes.digest));
}

std::string ContentHash::Hex() const { return absl::BytesToHexString(Bytes()); }

std::string HexHash(absl::string_view bytes) {
  ContentHash hash;
  hash.Add(bytes);
  return hash.Hex();
}

}  // namespace sluice
