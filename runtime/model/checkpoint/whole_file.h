#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/piece_reader.h"

namespace sluice {

// Reads a piece of an open file, whose name is for errors, to `to`, which has
// room for it. kDataLoss if the file can't be read or is too short.
absl::Status ReadPiece(int fd, const std::string& path, const PieceList& list,
                       uint64_t piece, char* to);

// An open file whose pieces should be those of a list. Thread-safe.
class WholeFile : public PieceReader {
 public:
  // Takes the descriptor over.
  WholeFile(std::string path, int fd, PieceListPtr list)
      : path_(std::move(path)), fd_(fd), list_(std::move(list)) {}
  ~WholeFile() override;
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  const PieceList& list() const override { return *list_; }
  const std::string& path() const override { return path_; }
  absl::Status Read(uint64_t piece, char* to) override {
    return ReadPiece(fd_, path_, *list_, piece, to);
  }

 private:
  const std::string path_;
  const int fd_;
  const PieceListPtr list_;
};

}  // namespace sluice
