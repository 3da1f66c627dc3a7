#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/piece_list.h"

// What a server of files needs of them, wherever they are.

namespace sluice {

// A file by its content: the name alone says nothing.
struct PiecedFile {
  std::string name;
  uint64_t bytes = 0;
  std::string hash;  // PieceList::FileHash
  friend bool operator==(const PiecedFile&, const PiecedFile&) = default;
};

// Pieces of one file. Thread-safe.
class PieceReader {
 public:
  virtual ~PieceReader() = default;
  virtual const PieceList& list() const = 0;
  virtual const std::string& path() const = 0;  // for messages
  // Reads a piece of the list into `to`, which has room for list().bytes().
  // kNotFound: it is not here, which may change; kDataLoss: it cannot be read.
  // The bytes read are not compared with the hash.
  virtual absl::Status Read(uint64_t piece, char* to) = 0;
};

// Files to be served. Thread-safe.
class PieceShelf {
 public:
  virtual ~PieceShelf() = default;
  // kNotFound: there is no such file here, or not with this content.
  virtual absl::StatusOr<std::shared_ptr<PieceReader>> Find(
      const PiecedFile& file) = 0;
};

}  // namespace sluice
