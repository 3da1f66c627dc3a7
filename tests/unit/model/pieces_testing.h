#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/content_hash.h"
#include "common/piece_list.h"
#include "runtime/model/checkpoint/model_content.h"
#include "runtime/model/pieces/stage_pieces.h"

// Files of random bytes and their pieces, for tests.

namespace sluice {

inline constexpr char kFile[] = "model.safetensors";

inline std::string RandomBytes(size_t bytes, uint32_t seed) {
  std::string text(bytes, '\0');
  uint64_t state = seed * 2654435761u + 1;
  for (char& c : text) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    c = static_cast<char>(state >> 56);
  }
  return text;
}

inline PieceListPtr ListOf(const std::string& bytes) {
  std::vector<PieceHash> hashes;
  for (size_t at = 0; at < bytes.size(); at += kPieceBytes) {
    hashes.push_back(
        HashPiece(absl::string_view(bytes).substr(at, kPieceBytes)));
  }
  return std::make_shared<const PieceList>(bytes.size(), std::move(hashes));
}

inline absl::string_view PieceOf(const std::string& bytes, uint64_t piece) {
  return absl::string_view(bytes).substr(piece * kPieceBytes, kPieceBytes);
}

// A model of one weight file; its config.json has the text `config`.
inline ModelContent ContentWith(const std::string& config,
                                const std::string& bytes) {
  ModelContent content;
  content.files.push_back({"config.json", config.size(), HexHash(config)});
  content.files.push_back({kFile, bytes.size(), ListOf(bytes)->FileHash()});
  return content;
}

inline PiecesByFile Pieces(std::vector<uint64_t> pieces) {
  return {{kFile, std::move(pieces)}};
}

}  // namespace sluice
