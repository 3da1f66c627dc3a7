#pragma once

#include <cstdint>
#include <filesystem>

namespace sluice {

// Disk room that a file reserves for changes that must work on a full disk: to
// delete rows, SQLite first writes to its log. Thread-compatible.
class SpaceReserve {
 public:
  SpaceReserve(std::filesystem::path path, int64_t bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  // Reserves `bytes`, or less: never more than a quarter of the free bytes. A
  // later call may reserve the rest.
  void Fill();
  // Frees the room.
  void Release();
  // The bytes that are reserved.
  int64_t held_bytes() const;

 private:
  const std::filesystem::path path_;
  const int64_t bytes_;
};

}  // namespace sluice
