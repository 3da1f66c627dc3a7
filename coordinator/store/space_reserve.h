#pragma once

#include <cstdint>
#include <filesystem>

namespace sluice {

// Room on a disk, kept in a file, for what must still work when the disk is
// full: to delete, SQLite first writes down what is to go. Thread-compatible.
class SpaceReserve {
 public:
  SpaceReserve(std::filesystem::path path, int64_t bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  // Takes `bytes`, or less: never more than a quarter of what is free. What
  // can't be had now can be another time.
  void Fill();
  // Gives the room away.
  void Release();
  // What is held.
  int64_t held_bytes() const;

 private:
  const std::filesystem::path path_;
  const int64_t bytes_;
};

}  // namespace sluice
